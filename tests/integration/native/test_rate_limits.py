"""Limits of keys and of a delegating key's users, as callers meet them: refusals, headers, what is left; over replicas."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import bearer
from tests.support.serving import http_client, until
from tests.support.talk import Talk

from fairlane.gateway.settings import CallerKey, KeyLimits

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LATER: dict[str, Any] = {"model": "m", "async": True}


def limited(name: str = "acme", **limits: int) -> list[Any]:
    return [key(name, limits=KeyLimits(**limits)), key("ops", scopes=["admin"])]


def told(headers: Any) -> dict[str, str]:
    return {name[12:]: value for name, value in headers.items() if name.startswith("x-ratelimit-")}


async def test_a_native_call_beyond_the_limit_is_told_when_to_come_again(gateway: Start) -> None:
    async with gateway(keys=limited(requests_per_day=2)) as talk, talk.worker2(["m"]):
        async with talk.client(secret("acme")) as acme:
            for _ in range(2):
                assert (await acme.post("/api/openai", json=LATER)).status_code == 202
            refused = await acme.post("/api/openai", json=LATER)
        body = refused.json()
        assert refused.status_code == 429
        assert body["code"] == "RATE_LIMITED"
        assert body["rateLimited"] is True
        assert 43_000_000 < body["retryAfterMs"] <= 43_200_000
        assert body["retryAfter"] == -(-body["retryAfterMs"] // 1000)
        assert refused.headers["retry-after"] == str(body["retryAfter"])
        assert int(refused.headers["retry-after-ms"]) == body["retryAfterMs"]
        assert body["error"].startswith(
            "Rate limit reached for this key on requests per day (RPD): Limit 2, Used 2, Requested 1. "
            "Please try again in 11h5"
        )
        assert told(refused.headers) == {}, "these are OpenAI's"


async def test_an_image_whose_bytes_are_more_than_the_limit_of_tokens_is_served_and_the_next_call_waits(
    gateway: Start,
) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'x' * 450_000}"}}
    large = {**CHAT, "messages": [{"role": "user", "content": [image]}]}
    async with gateway(keys=limited(tokens_per_minute=100_000)) as talk, talk.worker2(["m"]) as worker:
        async with talk.client(secret("acme")) as acme:
            call = talk.later(acme.post("/v1/chat/completions", json=large))
            task = await worker.take()
            refused = await acme.post("/v1/chat/completions", json=large)
            await worker.answer(
                task, {"content": "a cat"}, usage={"prompt_tokens": 900, "completion_tokens": 100}
            )
            assert (await call).status_code == 200
            limits = (await acme.get("/api/me")).json()["limits"]
        assert refused.status_code == 429
        assert 55 <= int(refused.headers["retry-after"]) <= 60
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
        assert "Limit 100000, Used" in error["message"]
        assert limits["tokensPerMinute"]["remaining"] >= 99_000


@pytest.mark.parametrize("stream", [False, True])
async def test_each_answer_on_v1_says_what_is_left(gateway: Start, stream: bool) -> None:
    async with (
        gateway(keys=limited(requests_per_minute=60, tokens_per_day=10_000)) as talk,
        talk.worker2(["m"], slots=2) as worker,
        talk.client(secret("acme")) as acme,
    ):
        call = talk.later(
            acme.post("/v1/chat/completions", json={**CHAT, "stream": stream, "max_tokens": 50})
        )
        task = await worker.take()
        await worker.answer(task, {"content": "hi"})
        answer = await call
        assert answer.status_code == 200
        left = told(answer.headers)
        estimate = (
            len(acme.build_request("POST", "/", json={**CHAT, "stream": stream, "max_tokens": 50}).content)
            // 4
        )
        assert (left["limit-requests"], left["remaining-requests"]) == ("60", "59")
        assert left["reset-requests"] == "1s"
        assert (left["limit-tokens"], left["remaining-tokens"]) == ("10000", str(10_000 - estimate - 50))
        assert left["reset-tokens"].endswith("s")
        call = talk.later(acme.post("/v1/chat/completions", json={**CHAT, "stream": stream}))
        await worker.answer(
            await worker.take(), None, error={"code": "UPSTREAM_ERROR", "message": "no", "retryable": False}
        )
        failed = await call
        assert failed.status_code == 502
        assert told(failed.headers)["limit-requests"] == "60", "a failed one, too"


async def test_who_has_no_limit_is_told_of_none(gateway: Start) -> None:
    async with (
        gateway(keys=[key("acme", limits=KeyLimits(max_running=1))]) as talk,
        talk.worker2(["m"]) as worker,
        talk.client(secret("acme")) as acme,
    ):
        call = talk.later(acme.post("/v1/chat/completions", json=CHAT))
        await worker.answer(await worker.take(), {"content": "hi"})
        assert told((await call).headers) == {}


async def test_users_of_a_delegating_key_are_limited_one_by_one(gateway: Start) -> None:
    site = key(
        "site",
        delegating=True,
        user_limits=KeyLimits(requests_per_day=2),
        limits=KeyLimits(requests_per_day=5),
    )
    async with gateway(keys=[site]) as talk, talk.worker2(["m"]):
        async with talk.client(secret("site")) as http:
            statuses: dict[str, list[int]] = {}
            for user in ("ann", "ann", "ann", "bob", "bob", "joe", "joe"):
                answer = await http.post("/api/openai", json=LATER, headers={"X-Fairlane-User": user})
                statuses.setdefault(user, []).append(answer.status_code)
            assert statuses == {"ann": [202, 202, 429], "bob": [202, 202], "joe": [202, 429]}
            account = (await http.get("/api/me", headers={"X-Fairlane-User": "joe"})).json()
        assert account["limits"]["requestsPerDay"]["remaining"] == 0
        assert account["userLimits"]["requestsPerDay"]["remaining"] == 1


async def test_a_caller_sees_what_is_left_of_each_limit(gateway: Start) -> None:
    keys = limited(requests_per_day=60, tokens_per_day=86_400, max_running=2, max_waiting=3)
    async with gateway(keys=keys) as talk, talk.worker2(["m"]) as worker, talk.client(secret("acme")) as acme:
        for _ in range(2):
            await acme.post("/api/openai", json=LATER)
        await worker.take()
        account = (await acme.get("/api/me")).json()
        assert account["userLimits"] == {}
        limits = account["limits"]
        assert limits["maxRunning"] == {"limit": 2, "remaining": 1}
        assert limits["maxWaiting"] == {"limit": 3, "remaining": 2}
        assert (limits["requestsPerDay"]["limit"], limits["requestsPerDay"]["remaining"]) == (60, 58)
        assert 0 < limits["requestsPerDay"]["resetMs"] <= 2 * 1_440_000
        assert 85_000 < limits["tokensPerDay"]["remaining"] < 86_400
        async with talk.client(secret("ops")) as ops:
            assert (await ops.get("/api/me")).json()["limits"] == {}


async def test_what_a_cancelled_task_wrote_is_charged_though_its_worker_goes_without_a_word(
    gateway: Start,
) -> None:
    keys = limited(tokens_per_day=86_400)
    async with gateway(keys=keys) as talk, talk.worker2(["m"]) as worker, talk.client(secret("acme")) as acme:
        body = {**LATER, "stream": True, "prompt": "x" * 4000, "max_tokens": 4000}
        task_id = (await acme.post("/api/openai", json=body)).json()["taskId"]

        async def remaining() -> int:
            limits = (await acme.get("/api/me")).json()["limits"]
            return int(limits["tokensPerDay"]["remaining"])

        task = await worker.take()
        for seq in range(1, 31):
            await worker.chunk(task, "a word ", seq)
        await worker.nothing_more(task)  # all of it has come
        await acme.post(f"/api/task/{task_id}/cancel")
        await worker.expect("cancel")
        assert await remaining() < 82_000, "it may use more yet"
        await worker.leave()

        async def settled() -> bool:
            return await remaining() > 82_000

        await until(settled, "the cancelled task to be settled")
        used = 86_400 - await remaining()
        assert 1000 + 30 <= used < 1000 + 130, "its input, and 30 deltas"


async def test_so_many_wait_and_the_next_is_refused(gateway: Start) -> None:
    async with gateway(keys=limited(max_waiting=2)) as talk, talk.worker2(["m"]) as worker:
        async with talk.client(secret("acme")) as acme:
            await acme.post("/api/openai", json=LATER)
            await worker.take()
            for _ in range(2):
                assert (await acme.post("/api/openai", json=LATER)).status_code == 202
            refused = await acme.post("/api/openai", json=LATER)
        assert refused.json()["error"].startswith(
            "Rate limit reached for this key on waiting tasks: Limit 2, Waiting 2. "
        )
        assert refused.json()["retryAfter"] >= 1


async def test_at_the_limit_of_running_tasks_the_next_waits_and_those_of_others_pass(gateway: Start) -> None:
    keys = [key("acme", limits=KeyLimits(max_running=1)), key("other")]
    async with (
        gateway(keys=keys) as talk,
        talk.worker2(["m"], slots=3) as worker,
        talk.client(secret("acme")) as acme,
        talk.client(secret("other")) as other,
    ):
        first, second = [(await acme.post("/api/openai", json=LATER)).json()["taskId"] for _ in range(2)]
        third = (await other.post("/api/openai", json=LATER)).json()["taskId"]
        running = [await worker.take() for _ in range(2)]
        assert {task["taskId"] for task in running} == {first, third}
        assert (await acme.get(f"/api/task/{second}")).json()["status"] == "queued"
        await worker.answer(next(task for task in running if task["taskId"] == first), {})
        assert (await worker.take())["taskId"] == second


async def test_of_a_thousand_callers_at_once_over_two_replicas_as_many_as_the_limit_says_are_accepted(
    gateway: Start,
) -> None:
    keys = limited(requests_per_day=100)
    # a busy machine loses no answer, and no worker that is silent meanwhile
    patience: dict[str, Any] = {
        "keys": keys,
        "redis_timeout_ms": 30_000,
        "dead_after_ms": 600_000,
        "lease_ms": 120_000,
    }
    async with gateway(**patience) as here, gateway(**patience) as there, there.worker2(["m"]):
        patient = {"headers": bearer(secret("acme")), "timeout": 120}
        async with (
            http_client(here.served.url, **patient) as one,
            http_client(there.served.url, **patient) as two,
        ):
            assert (await one.post("/api/openai", json=LATER)).status_code == 202
            found: Counter[int] = Counter()
            for _ in range(
                4
            ):  # all of them in one loop at once would hold it for longer than a worker's offer holds
                calls = [client.post("/api/openai", json=LATER) for client in (one, two) for _ in range(125)]
                found.update(answer.status_code for answer in await asyncio.gather(*calls))
        assert found == {202: 99, 429: 901}
        async with gateway(keys=keys) as late, late.client(secret("acme")) as three:
            assert (await three.post("/api/openai", json=LATER)).status_code == 429, "one that joins late"


async def test_a_new_limit_of_the_file_holds_from_the_next_task_on(gateway: Start) -> None:
    async with (
        gateway(keys=limited(requests_per_day=1)) as talk,
        talk.worker2(["m"]),
        talk.client(secret("acme")) as acme,
    ):
        assert [(await acme.post("/api/openai", json=LATER)).status_code for _ in range(2)] == [202, 429]
        before = talk.served.gateway.current.settings
        keys = [CallerKey(**limited(requests_per_day=3)[0])]
        changed = before.model_copy(update={"keys": keys})
        await talk.served.gateway.reconfigure(changed)
        assert [(await acme.post("/api/openai", json=LATER)).status_code for _ in range(3)] == [202, 202, 429]
