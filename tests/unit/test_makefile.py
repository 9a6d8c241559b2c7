"""What `make run` says to who has not what it needs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    return tmp_path


def make(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """`make .venv/bin/python` with a Python of these lines of shell."""
    (folder / "python").write_text(f"#!/bin/sh\n{python}\n")
    (folder / "python").chmod(0o755)
    command = ["make", "--no-print-directory", ".venv/bin/python", "PYTHON=./python"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_a_python_that_is_too_old_is_named_before_anything_is_made(folder: Path) -> None:
    old = f"""exec {sys.executable} -c "import sys; sys.version_info = (3, 9, 6); exec(sys.argv[2])" "$@\""""
    done = make(folder, old)
    assert done.returncode == 2
    assert (
        "Fairlane needs Python 3.11 or newer; ./python is 3.9. Name another one: make PYTHON=" in done.stderr
    )
    assert not (folder / ".venv").exists()


def test_an_environment_that_was_made_by_half_is_begun_anew(folder: Path) -> None:
    made = 'case "$1" in -m) mkdir -p .venv/bin; ln -s /bin/sh .venv/bin/python; echo made; exit {};; esac'
    for status in (1, 1, 0):
        done = make(folder, made.format(status))
        assert ("made" in done.stdout.split(), done.returncode == 0) == (True, status == 0)
    assert (folder / ".venv" / "bin" / "python").exists()
