"""Files and directories that their owner alone may open, whatever the process's umask and the modes of earlier versions."""

import os
from pathlib import Path
from typing import IO

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


def make_private_directory(path: Path) -> None:
    """Make a directory and those above it. One that is there already keeps its mode: its owner chose it. Raises OSError."""
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(DIRECTORY_MODE)


def open_private(path: Path) -> IO[bytes]:
    """A file to append to, made where there is none. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    os.fchmod(fd, FILE_MODE)
    return os.fdopen(fd, "ab")
