"""Node and its packages, which are installed once per machine and user."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

INSTALL_S = 100


def installed(root: Path, sources: list[str], package: str, *script: str) -> Path:
    """A copy of these files and folders of `root`, where `npm install` has been run in the folder `package`, and then `script`.

    Others use the same copy: whoever changes it makes a copy of their own.
    """
    npm = shutil.which("npm")
    assert npm is not None, "this test needs Node and npm"
    files = [path for source in sources for path in _files(root / source)]
    digest = hashlib.sha256(repr(script).encode())
    for path in files:
        digest.update(repr((str(path.relative_to(root)), path.read_bytes())).encode())
    cache = Path(tempfile.gettempdir()) / f"fairlane-tests-node-{os.getuid()}-{digest.hexdigest()[:12]}"
    cache.mkdir(mode=0o700, exist_ok=True)
    with _locked(cache / "lock"):
        if not (cache / "installed").exists():
            for path in files:
                (cache / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, cache / path.relative_to(root))
            _run(npm, "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=cache / package)
            if script:
                _run(npm, *script, cwd=cache / package)
            (cache / "installed").touch()
    return cache


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    inside = (
        file for file in path.rglob("*") if not {"node_modules", "dist", "__pycache__"} & set(file.parts)
    )
    return sorted(file for file in inside if file.is_file())


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Test processes install one after the other."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
