"""Breakers of upstreams, as callers, workers and operators meet them."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.integration.admin.test_commands import fairlane
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import RawWorker, bearer
from tests.support.serving import until
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
DEAD = {"error": "it broke", "errorInfo": {"code": "UPSTREAM_ERROR", "retryable": False}}
FAILURES = 5
LONG = {"breaker_open_ms": 600_000}
SHORT = {"breaker_open_ms": 100}


async def fail(talk: Talk, worker: RawWorker, number: int = FAILURES, **more: Any) -> None:
    """Have tasks fail through a worker, which is the only one that can have them."""
    for _ in range(number):
        call = talk.later(talk.http.post("/api/openai", json=CHAT, **more))
        await worker.answer(await worker.take(), None, **DEAD)
        assert (await call).json()["code"] == "UPSTREAM_ERROR"


async def serve(worker: RawWorker, name: str) -> None:
    """Answer whatever comes with this name."""
    while True:
        await worker.answer(await worker.take(), {"content": name})


async def passes(talk: Talk, seconds: float) -> None:
    """Return when so much of the gateway's time has passed."""
    clock = talk.served.gateway.dispatcher.pool.time
    then = clock() + seconds
    await until(lambda: clock() > then, "time to pass")


async def breaker(talk: Talk, upstream: str = "", model: str = "m") -> dict[str, Any] | None:
    rows = [row for row in (await talk.state())["models"] if row["model"] == model]
    known = {found["upstream"]: found for row in rows for found in row["upstreams"]}
    return known.get(upstream)


async def becomes(talk: Talk, state: str, upstream: str = "") -> None:
    async def is_so() -> bool:
        found = await breaker(talk, upstream)
        return (found["breaker"] if found else "closed") == state

    await until(is_so, f"the breaker to be {state}")


async def test_a_dead_upstream_is_told_at_once_on_every_replica_and_found_well_again(
    gateway: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {"m": SHORT | {"breaker_open_ms": 2000}}
    async with gateway(models=models) as one, gateway(models=models) as other:  # noqa: SIM117 (they go before it)
        async with one.worker2(["m"], upstream="gpu:8000") as worker:
            await fail(one, worker)
            for talk in (one, other):
                answer = await talk.http.post("/api/openai", json=CHAT)
                assert (answer.status_code, answer.json()["code"]) == (503, "MODEL_UNAVAILABLE"), answer.text
                assert 1 <= int(answer.headers["retry-after"]) <= 2
            found = await breaker(other, "gpu:8000")
            assert found is not None
            assert (found["breaker"], found["reason"], found["openings"], found["workers"]) == (
                "open",
                "UPSTREAM_ERROR",
                1,
                1,
            )
            async with AsyncOpenAI(base_url=f"{other.served.url}/v1", api_key="x", max_retries=0) as client:
                with pytest.raises(openai.InternalServerError) as refused:
                    await client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "hi"}]
                    )
                assert refused.value.code == "MODEL_UNAVAILABLE"
            one.later(serve(worker, "well"))
            await becomes(other, "half_open", "gpu:8000")
            for _ in range(2):
                answer = await other.http.post("/api/openai", json=CHAT)
                assert answer.json()["content"] == "well"
            await becomes(other, "closed", "gpu:8000")
            metrics = (await one.http.get("/metrics")).text
            for status, times in (("open", 1), ("probing", 2), ("closed", 1)):
                assert any(
                    line.startswith("fairlane_breaker_changes_total")
                    and f'status="{status}"' in line
                    and line.endswith(f" {times}.0")
                    for line in metrics.splitlines()
                ), status
    said = capsys.readouterr().out
    assert [said.count(line) for line in ("breaker opened", "breaker probes", "breaker closed")] == [1, 2, 1]


async def test_callers_with_a_fallback_meet_the_dead_model_no_more(gateway: Start) -> None:
    models = {"m": {"fallbacks": ["b"], **LONG}}
    async with gateway(models=models) as talk, talk.worker2(["m"]) as dead, talk.worker2(["b"]) as other:
        talk.later(serve(other, "from b"))
        for _ in range(FAILURES):
            call = talk.later(talk.http.post("/v1/chat/completions", json=CHAT))
            await dead.answer(await dead.take(), None, **DEAD)
            assert (await call).json()["model"] == "b"
        answers = await asyncio.gather(
            *(talk.http.post("/v1/chat/completions", json=CHAT) for _ in range(20))
        )
        assert {(answer.status_code, answer.headers["x-fairlane-model"]) for answer in answers} == {
            (200, "b")
        }
        await dead.skip_to("resultAck") if dead.seen[-1]["type"] != "resultAck" else None
        await dead.nothing_more()


@pytest.mark.parametrize("replicas", [1, 2])
async def test_of_two_upstreams_the_one_that_works_has_all_until_the_other_does(
    gateway: Start, replicas: int
) -> None:
    models = {"m": {"breaker_open_ms": 1000}}
    async with gateway(models=models) as here, gateway(models=models) as there:
        second = here if replicas == 1 else there
        async with here.worker2(["m"], upstream="bad") as bad:
            await fail(here, bad)
            await becomes(here, "open", "bad")
            async with second.worker2(["m"], upstream="good") as good:
                working = second.later(serve(good, "good"))
                for _ in range(10):
                    answer = await here.http.post("/api/openai", json=CHAT)
                    assert answer.json().get("content") == "good", answer.text
                await becomes(here, "half_open", "bad")
                working.cancel()
                served = {"bad": 0, "good": 0}

                async def count(worker: RawWorker, name: str) -> None:
                    while True:
                        task = await worker.take()
                        served[name] += 1
                        await worker.answer(task, {"content": name})

                here.later(count(bad, "bad"))
                second.later(count(good, "good"))

                async def closed() -> bool:
                    answers = await asyncio.gather(
                        *(here.http.post("/api/openai", json=CHAT) for _ in range(4))
                    )
                    assert {answer.status_code for answer in answers} == {200}
                    found = await breaker(here, "bad")
                    return found is not None and found["breaker"] == "closed"

                await until(closed, "the breaker to close")
                assert served["bad"] >= 2


async def test_those_who_wait_while_it_is_open_are_served_when_it_is_well_again(gateway: Start) -> None:
    async with gateway(models={"m": {"breaker_open_ms": 500}}) as talk, talk.worker2(["m"]) as worker:
        async with talk.worker2(["m"], upstream="gone"):
            pass
        waiting = [await talk.submit(**CHAT) for _ in range(FAILURES + 3)]
        for _ in range(FAILURES):
            await worker.answer(await worker.take(), None, **DEAD)
        await becomes(talk, "open")
        left = waiting[FAILURES:]
        polled = await talk.poll(left[0])
        assert (polled["status"], polled["estimatedWaitMs"]) == ("queued", None)
        talk.later(serve(worker, "well"))
        for task_id in left:
            assert (await talk.reaches(task_id, "completed"))["result"] == {"content": "well"}
        await becomes(talk, "closed")


async def test_an_operator_forces_a_breaker_by_call_and_by_command(gateway: Start) -> None:
    keys = [key("ops", scopes=["admin"]), key("look", scopes=["viewer"]), key("app")]
    async with gateway(keys=keys) as talk, talk.worker2(["m"], upstream="up 1") as worker:
        ops = bearer(secret("ops"))
        talk.http.headers.update(bearer(secret("app")))
        said = {"upstream": "tests/up 1", "breaker": "open"}
        for who in ("app", "look"):
            denied = await talk.http.patch("/api/admin/models/m", json=said, headers=bearer(secret(who)))
            assert denied.status_code == 403
        forced = await talk.http.patch("/api/admin/models/m", json=said, headers=ops)
        assert forced.json()["changed"] == {"breaker": {"before": "auto", "after": "open"}}
        assert (await talk.http.post("/api/openai", json=CHAT)).json()["code"] == "MODEL_UNAVAILABLE"
        for wrong, status in (
            ({**said, "upstream": "other"}, 404),
            ({**said, "breaker": "ajar"}, 400),
            ({**said, "more": 1}, 400),
            ({"upstream": "tests/up 1"}, 400),
        ):
            assert (
                await talk.http.patch("/api/admin/models/m", json=wrong, headers=ops)
            ).status_code == status
        entries = (await talk.http.get("/api/admin/audit?action=update", headers=ops)).json()["entries"]
        assert [(entry["actor"], entry["target"], entry["after"]) for entry in entries] == [
            ("ops", "upstream m tests/up 1", {"breaker": "open"})
        ]
        for state, before in (("closed", "open"), ("auto", "closed")):
            done = await fairlane(
                talk, "breaker", "update", "m", state, "--upstream", "tests/up 1", "--api-key", secret("ops")
            )
            assert done.stdout.split()[-3:] == ["breaker", before, state]
            await fail(talk, worker, 2 * FAILURES if state == "closed" else FAILURES)
        assert (await talk.http.post("/api/openai", json=CHAT)).json()["code"] == "MODEL_UNAVAILABLE"
