"""Fixtures: a Redis of this session, a gateway with the cast of models, and a folder with the Node SDK."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.support.node import installed
from tests.support.serving import DEADLINE_S, NO_TLS
from tests.support.talk import Talk

from fairlane.gateway.openai import answers

from .media import TEAM, Media, media_behind
from .openais import Sdk, python_sdk
from .stage import PATIENT, MakeStage, Stage, cast_behind

NODE = Path(__file__).parent / "node"
Start = Callable[..., AbstractAsyncContextManager[Talk]]


@pytest.fixture(autouse=True)
def patient_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a stream that fails before its first output is told by a status."""
    monkeypatch.setattr(answers, "HOLD_HEAD_S", DEADLINE_S)


@pytest.fixture
def shared_stage(shared_gateway: Start) -> MakeStage:
    """Makes a gateway with the cast, as `staged` does; the gateway is one that the tests of a module share."""

    @asynccontextmanager
    async def make(slots: int = 4, key: str = "none", **settings: Any) -> AsyncIterator[Stage]:
        async with shared_gateway(**settings) as talk, cast_behind(talk.served, slots, key) as stage:
            yield stage

    return make


@pytest.fixture
async def stage(shared_stage: MakeStage) -> AsyncIterator[Stage]:
    """A gateway and the cast. Lease and linger are long, so that a cancel comes from the departure itself."""
    async with shared_stage(**PATIENT) as stage:
        yield stage


@pytest.fixture
async def crowded(shared_stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """One slot, taken by `patient`; streams that wait hear something every 20 ms, their place every 100 ms."""
    monkeypatch.setattr(answers, "QUEUE_CHUNK_S", 0.1)
    async with shared_stage(slots=1, keepalive_ms=20) as stage:
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
async def media(shared_gateway: Start) -> AsyncIterator[Media]:
    async with shared_gateway(**PATIENT, keys=[TEAM]) as talk, media_behind(talk.served) as media:
        yield media


@pytest.fixture
async def http() -> AsyncIterator[openai.DefaultAsyncHttpxClient]:
    """Connections of one test: those that frameworks share by themselves outlive the event loop."""
    async with openai.DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS) as client:
        yield client
