"""Fixtures: a Redis of this session, a gateway with the cast of models, and a folder with the Node SDK."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.node import installed
from tests.support.serving import DEADLINE_S

from fairlane.gateway.api import answering

from .stage import Sdk, Stage, python_sdk, staged

NODE = Path(__file__).parent / "node"


@pytest.fixture(autouse=True)
def patient_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a stream that fails before its first output is told by a status."""
    monkeypatch.setattr(answering, "HOLD_HEAD_S", DEADLINE_S)


@pytest.fixture
async def stage(redis_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A gateway and the cast. Lease and linger are long, so that a cancel comes from the departure itself."""
    async with staged(redis_url, tmp_path, lease_ms=120_000, linger_ms=120_000) as stage:
        yield stage


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which of the two Python clients."""
    return str(request.param)


@pytest.fixture
async def sdk(stage: Stage, kind: str) -> AsyncIterator[Sdk]:
    """A Python client of the stage, without retries."""
    async with python_sdk(kind, stage.base_url) as sdk:
        yield sdk


@pytest.fixture(scope="session")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `client.mjs` and `anthropic.mjs`, and the packages they need."""
    packages = installed(NODE, ["package.json", ".npmrc"], ".")
    project = tmp_path_factory.mktemp("node")
    for program in ("client.mjs", "anthropic.mjs"):
        shutil.copy(NODE / program, project)
    (project / "node_modules").symlink_to(packages / "node_modules")
    return project
