"""The lock files hold what is installed, all of it with hashes, and installs check them."""

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME, IMAGE, DEVELOPMENT = "requirements.lock", "requirements-image.lock", "requirements-dev.lock"


def locked(name: str) -> dict[str, set[tuple[str, str, frozenset[str]]]]:
    """Package -> version, marker and hashes of each of its entries."""
    found: dict[str, set[tuple[str, str, frozenset[str]]]] = {}
    text = (ROOT / name).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        pin, *hashes = re.split(r"\s+--hash=", line.strip())
        package, version, marker = re.fullmatch(r"([a-z0-9-]+)==([^ ;]+)(?: ; (.+))?", pin).groups("")  # type: ignore[union-attr]
        assert hashes, line
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), line
        found.setdefault(package, set()).add((version, marker, frozenset(hashes)))
    return found


def names(requirements: list[str]) -> set[str]:
    return {
        re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-") for requirement in requirements
    }


def test_every_requirement_is_locked() -> None:
    runs = names(PROJECT["project"]["dependencies"])
    builds = names(PROJECT["build-system"]["requires"])
    assert names(PROJECT["dependency-groups"]["build"]) == builds
    assert runs | builds <= set(locked(RUNTIME))
    extras = PROJECT["project"]["optional-dependencies"].values()
    assert runs | builds | {name for extra in extras for name in names(extra)} <= set(locked(DEVELOPMENT))


def test_the_image_holds_what_runs_and_what_traces_and_buckets_need() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(locked(IMAGE)) >= set(locked(RUNTIME)) | names(extras["otel"]) | names(extras["s3"])
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert dockerfile.count(IMAGE) == 2  # it comes in, and is installed
    assert " requirements.lock" not in dockerfile


@pytest.mark.parametrize("name", [RUNTIME, IMAGE])
def test_what_runs_is_the_same_in_development_and_small(name: str) -> None:
    runtime, development = locked(name), locked(DEVELOPMENT)
    for package, entries in runtime.items():
        versions = {(version, hashes) for version, _, hashes in entries}
        assert versions <= {(version, hashes) for version, _, hashes in development[package]}, package
    assert len(runtime) < len(development) / 2


@pytest.mark.parametrize("name", [RUNTIME, IMAGE, DEVELOPMENT])
def test_a_lock_file_names_no_place_to_load_from(name: str) -> None:
    assert not re.search(r"://|--(?!hash=)| @ ", (ROOT / name).read_text())


def test_installs_check_the_hashes_and_load_nothing_else() -> None:
    for name, ways, places in (("Makefile", 4, 2), ("Dockerfile", 1, 1)):
        text = (ROOT / name).read_text()
        assert text.count("--require-hashes -r ") == ways, name
        assert text.count("--no-deps --no-build-isolation") == places, name
        assert "-c requirements.lock" not in text, name


def test_vendored_files_are_those_of_their_manifest() -> None:
    folder = ROOT / "web/static/vendor"
    manifest = json.loads((folder / "package.json").read_text())
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "package.json"]
    found = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert found == {name: entry["sha256"] for name, entry in manifest["vendored"].items()}
    assert {name.split("/")[0] for name in found} == manifest["dependencies"].keys()
    for package, version in manifest["dependencies"].items():
        beginnings = [file.read_text()[:200] for file in files if file.match(f"{package}/*.js")]
        assert any(re.search(rf"v{re.escape(version)}\b", text) for text in beginnings), package
