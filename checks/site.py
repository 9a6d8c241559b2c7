"""Build the documentation site: `python -m checks.site` writes build/site, and fails on any warning.

The pages are those of `docs/` and, as `protocol.md`, `workers/PROTOCOL.md`. Their links work on GitHub; a copy in build/docs
has links that work on the site: to the protocol as a page, to other files of the repository on GitHub.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from checks.words import ROOT

CONFIGURATION = ROOT / "zensical.toml"
STAGE = ROOT / "build" / "docs"
PROTOCOL = "workers/PROTOCOL.md"
LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")(?!\w+:|#|/)([^)\"#\s]+)")
NOTE = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
"""Marks for the tests of code blocks."""


def navigation() -> list[str]:
    """Return the pages of the site, in order."""
    project = tomllib.loads(CONFIGURATION.read_text())["project"]
    return [page for group in project["nav"] for pages in group.values() for page in pages]


def staged(source: str, text: str) -> str:
    """Return the page of a file of the repository with the links of the site."""
    repository = tomllib.loads(CONFIGURATION.read_text())["project"]["extra"]["social"][0]["link"]

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if target == PROTOCOL:
            return f"{match[1]}protocol.md"
        if target.startswith("docs/"):
            return match[1] + target.removeprefix("docs/")
        kind = "blob" if (ROOT / target).is_file() else "tree"
        return f"{match[1]}{repository}/{kind}/main/{target}"

    return LINK.sub(link, NOTE.sub("", text))


def sources() -> dict[str, str]:
    """Return the file of each page of the site, in order."""
    return {name: PROTOCOL if name == "protocol.md" else f"docs/{name}" for name in navigation()}


def stage() -> None:
    """Write the pages and their pictures to build/docs."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "images", STAGE / "images")
    for name, source in sources().items():
        (STAGE / name).write_text(staged(source, (ROOT / source).read_text()))


def main() -> int:
    written = {str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md")}
    wanted = set(sources().values()) - {PROTOCOL}
    for page in sorted(written ^ wanted):
        print(f"{page} is {'not in the navigation of zensical.toml' if page in written else 'missing'}")
    if written != wanted:
        return 1
    stage()
    command = [Path(sys.executable).parent / "zensical", "build", "--clean", "--strict"]
    ran = subprocess.run(  # noqa: S603
        command, check=False, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True
    )
    if ran.returncode:
        print(re.sub(r"\x1b\[[\d;]*m", "", ran.stdout + ran.stderr.partition("Traceback")[0]))
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
