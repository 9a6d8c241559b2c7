"""The worker that a gateway starts for its endpoints: when there is one, what it sees and may do."""

import asyncio
import sys
from typing import Any

import pytest
from tests.support.serving import until

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.upstreams import HTTP_WORKER, OWN_WORKER, UpstreamTokens
from fairlane.gateway.serve import workers as workers_module
from fairlane.gateway.serve.workers import OwnWorker, OwnWorkers, own_plan
from fairlane.gateway.settings import Settings

ENDPOINT = {"url": "https://a.example/*"}
KEY = {"id": "app", "sha256": "1" * 64}


def settings(endpoints: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({"endpoints": endpoints, **more})


def test_it_sees_its_token_and_nothing_else() -> None:
    tokens, asked = UpstreamTokens(), settings({"a": ENDPOINT}, http_worker_slots=7)
    worker = own_plan(tokens, {}, asked)(asked, True)[HTTP_WORKER]
    assert worker.arguments == ("start", "--name=http", "--drain-ms=600000", "--provider=http", "--slots=7")
    assert dict(worker.environ) == {"FAIRLANE_WORKER_TOKEN": tokens.token(HTTP_WORKER)}
    assert tokens.token(HTTP_WORKER) not in repr(worker)
    assert own_plan(tokens, {}, asked)(settings({"a": ENDPOINT}, http_worker_slots=0), True) == {}


def test_its_token_is_good_for_endpoints_alone() -> None:
    tokens = UpstreamTokens()
    callers = Callers(settings({}, keys=[KEY]), own=tokens)
    identity = callers.authenticate_worker(f"Bearer {tokens.token(HTTP_WORKER)}")
    assert identity is not None
    assert (identity.id, identity.models) == (OWN_WORKER, ("http:*",))
    none = Callers(settings({}, keys=[KEY], http_worker_slots=0), own=tokens)
    assert none.authenticate_worker(f"Bearer {tokens.token(HTTP_WORKER)}") is None
    assert (
        Callers(settings({}, keys=[KEY])).authenticate_worker(f"Bearer {tokens.token(HTTP_WORKER)}") is None
    )


def test_it_runs_as_long_as_there_are_endpoints_that_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does nothing, in place of the command."""
    script = "import time; print('registered with x', flush=True); time.sleep(600)"
    monkeypatch.setattr(workers_module, "COMMAND", (sys.executable, "-c", script))
    other = {"other": OwnWorker(("other",))}

    async def run() -> None:
        plan = own_plan(UpstreamTokens(), {}, Settings(), other)
        async with OwnWorkers(plan, "http://127.0.0.1:1", {}, 600) as own:

            def names() -> set[str]:
                return set(own._keepers)

            own.endpoints(False)
            assert names() == set()
            own.follow(settings({}))
            assert names() == {"other"}
            first = own._keepers["other"]
            own.endpoints(True)
            assert names() == {"other", HTTP_WORKER}
            mine = own._keepers[HTTP_WORKER]
            own.endpoints(True)
            assert own._keepers[HTTP_WORKER] is mine
            own.endpoints(False)
            assert names() == {"other"}
            own.follow(settings({"a": ENDPOINT}))
            assert names() == {"other", HTTP_WORKER}
            own.endpoints(False)  # what is heard of earlier settings
            assert names() == {"other", HTTP_WORKER}
            own.follow(settings({"a": ENDPOINT}, http_worker_slots=0))
            assert names() == {"other"}
            assert own._keepers["other"] is first  # left alone all the time
            await until(lambda: mine.over, "its end")

    asyncio.run(run())


def test_others_are_not_started_again_because_an_endpoint_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that an operator has drained stays down."""
    monkeypatch.setattr(workers_module, "COMMAND", (sys.executable, "-c", "print('registered with x')"))

    async def run() -> None:
        async with OwnWorkers(lambda *_: {"drained": OwnWorker(())}, "http://127.0.0.1:1", {}, 600) as own:
            own.follow(Settings())
            drained = own._keepers["drained"]
            await until(lambda: drained.over, "its end")
            own.endpoints(True)
            assert own._keepers["drained"] is drained

    asyncio.run(run())
