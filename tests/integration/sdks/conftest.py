"""Fixtures: a Redis of this session, a gateway with the cast of models, and a folder with the Node SDK."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from tests.support.node import installed
from tests.support.serving import DEADLINE_S, NO_TLS

from fairlane.gateway.api import answering

from .media import Media, media_staged
from .openais import Sdk, python_sdk
from .stage import Stage, staged

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


@pytest.fixture
async def crowded(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """One slot, taken by `patient`; streams that wait hear something every 20 ms, their place every 100 ms."""
    monkeypatch.setattr(answering, "QUEUE_CHUNK_S", 0.1)
    async with staged(redis_url, tmp_path, slots=1, keepalive_ms=20) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
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
    """A folder with the scenarios, and the packages they need."""
    packages = installed(NODE, ["package.json", ".npmrc"], ".")
    project = tmp_path_factory.mktemp("node")
    for program in NODE.glob("*.mjs"):
        shutil.copy(program, project)
    (project / "node_modules").symlink_to(packages / "node_modules")
    return project


@pytest.fixture
async def media(redis_url: str, tmp_path: Path) -> AsyncIterator[Media]:
    async with media_staged(redis_url, tmp_path) as media:
        yield media


@pytest.fixture
async def http() -> AsyncIterator[openai.DefaultAsyncHttpxClient]:
    """Connections of one test: those that frameworks share by themselves outlive the event loop."""
    async with openai.DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS) as client:
        yield client
