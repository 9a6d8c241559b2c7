"""Worker tokens that are read again: a rotated secret, other models. What is open follows at once."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.support.rawworkers import RawWorker, bearer, callers_of, until_workers, worker_v1, worker_v2
from tests.support.serving import Served, serving, until

from fairlane.gateway.connections.workers import WorkerProtocol
from fairlane.gateway.settings import WorkerKey

pytestmark = pytest.mark.anyio


def key(secret: str, *models: str, id: str = "gpu") -> dict[str, Any]:
    return {"id": id, "sha256": hashlib.sha256(secret.encode()).hexdigest(), "models": list(models or "*")}


@pytest.fixture
async def guarded(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(redis_url, tmp_path, workers=[key("old", "m", "n")]) as served:
        yield served


async def reread(served: Served, *keys: dict[str, Any]) -> None:
    workers = [WorkerKey(**one) for one in keys]
    settings = served.gateway.current.settings.model_copy(update={"workers": workers})
    await served.gateway.reconfigure(settings)


@contextlib.asynccontextmanager
async def connected(served: Served, version: int, secret: str = "old") -> AsyncIterator[RawWorker]:
    before = len(served.gateway.dispatcher.pool)
    make: Any = (
        worker_v1(served.ws, token=secret) if version == 1 else worker_v2(served.ws, "*", token=secret)
    )
    async with make as worker:
        await until_workers(served, before + 1)
        yield worker


@pytest.mark.parametrize("version", [1, 2])
async def test_a_rotated_token_closes_what_was_opened_with_the_old_one(guarded: Served, version: int) -> None:
    async with connected(guarded, version) as worker:
        await reread(guarded, key("new", "m", "n"))
        assert await worker.closed() == 4401
    async with connected(guarded, version, "new"):
        await reread(guarded, key("new", "m", "n"), key("other", id="another"))
        assert len(guarded.gateway.dispatcher.pool) == 1


@pytest.mark.parametrize("version", [1, 2])
async def test_a_token_that_covers_other_models_changes_what_its_workers_offer(
    guarded: Served, version: int
) -> None:
    gateway = guarded.gateway
    async with connected(guarded, version) as worker, callers_of(guarded) as callers:
        (mine,) = gateway.dispatcher.pool
        assert mine.models == ("m", "n")
        await reread(guarded, key("old", "n", "o"))
        assert mine.models == ("n", "o")
        await until_workers(guarded, 1)
        assert (await callers.client.post("/api/openai", json={"model": "m"})).is_error
        answer = callers.ask("o")
        task = await worker.skip_to("task")
        await worker.answer(task, "o", **({} if version == 1 else {"lastSeq": 0}))
        assert await answer.ok() == "o"

        async def told() -> bool:
            rows = await gateway.inspector.workers()
            return [row["models"] for row in rows] == [("n", "o")]

        await until(told, "the others to know")


async def test_a_token_that_covers_none_of_its_workers_models_closes_them(guarded: Served) -> None:
    async with worker_v2(guarded.ws, "m", token="old") as worker:
        await reread(guarded, key("old", "o"))
        assert await worker.closed() == 4401


async def test_what_runs_when_a_token_loses_its_model_goes_on(guarded: Served) -> None:
    async with worker_v2(guarded.ws, "m", "n", token="old") as worker, callers_of(guarded) as callers:
        answer = callers.ask("m")
        task = await worker.expect("task")
        await reread(guarded, key("old", "n"))
        await worker.answer(task, "done", lastSeq=0)
        assert await answer.ok() == "done"
        await worker.expect("resultAck", status="accepted")


async def test_tokens_that_are_asked_for_from_now_on_close_who_came_without(served: Served) -> None:
    async with worker_v1(served.ws) as worker:
        await until_workers(served, 1)
        await reread(served, key("new"))
        assert await worker.closed() == 4401


async def test_a_worker_that_comes_while_the_gateway_goes_is_no_error(
    guarded: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receive = WorkerProtocol.receive

    async def too_late(self: WorkerProtocol) -> Any:
        event = await receive(self)
        self.shutdown()  # as uvicorn ends what is not connected yet; then the token is refused
        return event

    monkeypatch.setattr(WorkerProtocol, "receive", too_late)
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(guarded.ws, additional_headers=bearer("wrong"), proxy=None)
    assert refused.value.response.status_code == 500
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("upstream", ["shared", None])
@pytest.mark.parametrize("code", ["MODEL_TOO_BUSY", "UPSTREAM_ERROR"])
async def test_no_worker_stops_a_model_for_workers_of_another_token(
    redis_url: str, tmp_path: Path, upstream: str | None, code: str
) -> None:
    tokens = [key("of-bad", id="bad"), key("of-good", id="good")]
    more = {"upstream": upstream} if upstream else {}
    async with (
        serving(redis_url, tmp_path, workers=tokens, models={"m": {"breaker_failures": 2}}) as served,
        callers_of(served) as callers,
        worker_v2(served.ws, "m", token="of-bad", name="rogue", **more) as bad,
    ):
        info: dict[str, Any] = {"code": code, "retryable": code == "MODEL_TOO_BUSY"}
        if info["retryable"]:
            info |= {"httpStatus": 429, "retryAfterMs": 300_000}
        for _ in range(1 if info["retryable"] else 2):
            await callers.later(model="m")
            await bad.answer(await bad.take(), None, lastSeq=0, error="busy", errorInfo=info)

        async def stopped() -> bool:
            (model,) = (await callers.client.get("/api/admin/overview")).json()["models"]
            (shown,) = model["upstreams"]
            assert shown["upstream"] == f"bad/{upstream or ''}"
            assert shown["cooldownBy"] in (None, "rogue, token bad")
            return bool(shown["cooldownUntil"] and shown["cooldownBy"]) or shown["breaker"] == "open"

        await until(stopped, "the upstream of the rogue to be stopped")
        async with worker_v2(served.ws, "m", token="of-good", upstream="shared") as good:
            tasks = [await callers.later(model="m") for _ in range(2)]
            serving_all = asyncio.create_task(_answer_all(good))
            for task_id in tasks:
                await callers.until_status(task_id, "completed")
            serving_all.cancel()


async def _answer_all(worker: RawWorker) -> None:
    while True:
        await worker.answer(await worker.take(), "done", lastSeq=0)
