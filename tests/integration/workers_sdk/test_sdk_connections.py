"""Losing, refusing, replacing and ending connections."""

import asyncio
import logging
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.sdk import Context, GatewayRefusedError, Task, Worker
from fairlane.workers.testing import FakeGateway

from .sdk_bench import DEADLINE_S, serving

pytestmark = pytest.mark.anyio


def waiting_worker(
    gateway: FakeGateway, slots: int = 1, **options: Any
) -> tuple[Worker, asyncio.Event, list[str]]:
    """A worker whose handler waits for the event; it notes how each task ended."""
    worker = Worker(gateway=gateway.url, slots=slots, **options)
    release, ends = asyncio.Event(), list[str]()

    @worker.handler(models=["m"])
    async def wait(task: Task, context: Context) -> str:
        try:
            await release.wait()
        except asyncio.CancelledError:
            ends.append(context.cancelled.reason or "?")
            raise
        ends.append("finished")
        return "done"

    return worker, release, ends


async def test_a_lost_connection_cancels_its_tasks_and_is_replaced(gateway: FakeGateway) -> None:
    worker, release, ends = waiting_worker(gateway)
    async with serving(worker):
        given = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await given.acknowledged.wait()
        given.link.drop()
        with pytest.raises(ConnectionError):
            await given.outcome()
        again = await gateway.give("x", {}, model="m", attempt=2, task_id=given.task_id)
        assert again.link is not given.link
        assert ends == ["disconnected"]
        release.set()
        assert (await again.outcome()).result == "done"
    registers = gateway.from_workers("register")
    assert registers[0]["instanceId"] == registers[1]["instanceId"]
    assert [m["attempt"] for m in gateway.from_workers("taskResult")] == [2]


async def test_draining_finishes_tasks_waits_for_acknowledgements_and_closes_in_good_order(
    gateway: FakeGateway,
) -> None:
    worker, release, ends = waiting_worker(gateway, slots=2)
    async with serving(worker) as running:
        given = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await given.acknowledged.wait()
        running.stopping.set()
        await gateway.until(lambda: given.link.draining)
        late = await gateway.give("x", {}, model="m", link=given.link)
        assert (await late.outcome()).rejected == "draining"
        gateway.acks.clear()
        release.set()
        assert (await given.outcome()).result == "done"
        assert not running.task.done()
        gateway.acks.set()
        await running.ended()
    await gateway.until(lambda: given.link.close_code is not None)
    assert given.link.close_code == 1000
    assert ends == ["finished"]


async def test_a_drain_that_takes_too_long_cancels_and_says_that_a_retry_helps(gateway: FakeGateway) -> None:
    worker, _, ends = waiting_worker(gateway, drain_ms=20)
    async with serving(worker) as running:
        given = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await given.acknowledged.wait()
        await running.stop()
        outcome = await given.outcome()
    assert outcome.error_info is not None
    assert outcome.error_info["retryable"] is True
    assert ends == ["shutdown"]


async def test_a_gateway_that_goes_is_replaced_before_its_connection_ends(gateway: FakeGateway) -> None:
    worker, release, ends = waiting_worker(gateway, slots=2)
    async with serving(worker) as running:
        old_task = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await old_task.acknowledged.wait()
        old = old_task.link
        await old.drain(reconnect=True, grace_ms=60_000)
        await gateway.until(lambda: len(gateway.links) == 2)
        assert gateway.links[1].slots == 1  # the other one is busy on the old connection
        new_task = await gateway.give("x", {}, model="m")
        assert new_task.link is not old
        release.set()
        assert (await old_task.outcome()).result == "done"
        assert (await new_task.outcome()).result == "done"
        await gateway.until(lambda: old.close_code is not None)
        assert old.close_code == 1000
        await gateway.until(lambda: gateway.links[0].slots == 2)
        assert len(gateway.links) == 1
        await running.stop()
    assert ends == ["finished", "finished"]


async def test_a_worker_that_an_operator_takes_out_finishes_and_does_not_come_back(
    gateway: FakeGateway,
) -> None:
    worker, release, ends = waiting_worker(gateway)
    async with serving(worker) as running:
        given = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await given.acknowledged.wait()
        await given.link.drain(reconnect=False, grace_ms=60_000)
        release.set()
        assert (await given.outcome()).result == "done"
        await running.ended()
    assert ends == ["finished"]
    assert gateway.links == []


async def test_the_token_is_shown_and_a_wrong_one_is_fatal() -> None:
    async with FakeGateway(token="right") as gateway:
        worker, release, _ = waiting_worker(gateway, token="right")
        release.set()
        async with serving(worker):
            assert (await gateway.run("x", {}, model="m")).result == "done"
        for token, sentence in (
            ("wrong", "does not know"),
            ("fl_app_wrong", "a caller's key"),
            (None, "asks for a worker token"),
        ):
            worker.token = token
            async with serving(worker) as running:
                with pytest.raises(GatewayRefusedError, match=sentence) as caught:
                    await running.ended()
            assert "FAIRLANE_WORKER_TOKEN" in str(caught.value)
            assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("code", [4401, 4426])
async def test_a_fatal_close_code_ends_the_worker_with_advice(gateway: FakeGateway, code: int) -> None:
    worker, _, _ = waiting_worker(gateway)
    async with serving(worker) as running:
        link = await gateway.worker("m")
        await link.close(code, "because")
        with pytest.raises(GatewayRefusedError, match=f"{code}.*because"):
            await running.ended()


async def test_a_busy_gateway_is_asked_again_not_before_it_wants(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.refusals.append((503, {"Retry-After": "0.2"}))
    worker, _, _ = waiting_worker(gateway)
    with caplog.at_level(logging.WARNING, "fairlane.worker"):
        async with serving(worker):
            await gateway.worker("m")
    (record,) = [r for r in caplog.records if "next attempt" in r.message]
    assert "answered 503; it starts, shuts down" in record.message
    assert isinstance(record.args, tuple)
    address, _, delay = record.args
    assert address == gateway.url
    assert isinstance(delay, float)
    assert 0.2 <= delay <= 0.7


async def test_a_gateway_that_dies_before_the_handshake_is_dialled_again(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its accepting the connection and the worker's first word."""
    real, died = ClientConnection.handshake, 0

    async def handshake(self: ClientConnection, *args: Any, **more: Any) -> None:
        nonlocal died
        if died < 2:
            died += 1
            self.transport.abort()
            await self.connection_lost_waiter
        await real(self, *args, **more)

    monkeypatch.setattr(ClientConnection, "handshake", handshake)
    worker, release, _ = waiting_worker(gateway)
    release.set()
    async with serving(worker):
        given = await gateway.give("x", {}, model="m")
        assert (await given.outcome()).result == "done"
    assert died == 2


async def test_cancelling_serve_leaves_nothing_running(gateway: FakeGateway) -> None:
    worker, _, ends = waiting_worker(gateway)
    before = asyncio.all_tasks()
    async with serving(worker):
        given = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await given.acknowledged.wait()
    assert ends == ["shutdown"]
    await gateway.until(lambda: not gateway.links)
    names = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not any("fairlane" in name for name in names)


async def test_what_an_upstream_tells_of_its_models_is_told_to_the_gateway(gateway: FakeGateway) -> None:
    rows = [
        {"id": "org/big", "owned_by": "vllm", "max_model_len": 32_768},
        {"id": "other", "owned_by": "vllm", "max_model_len": 1},
    ]
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"data": rows}))
    worker = Worker(gateway=gateway.url)
    models = {"big": "org/big", "unknown": "unknown"}
    PROVIDERS["openai"].adapter(
        base_url="http://upstream.test/v1", models=models, transport=transport
    ).attach(worker)
    async with serving(worker):
        await gateway.until(lambda: len(gateway.from_workers("register")) == 1)
        worker.describe("unknown", context_length=4096)
        worker.describe("unknown", context_length=4096)
        await gateway.until(lambda: len(gateway.from_workers("register")) == 2)
        with pytest.raises(ValueError, match="unknown: invalid description"):
            worker.describe("unknown", context_length=0)
    big = {"contextLength": 32_768, "ownedBy": "vllm"}
    told = [frame["modelInfo"] for frame in gateway.from_workers("register")]
    assert told == [{"big": big}, {"big": big, "unknown": {"contextLength": 4096}}]
