"""A key is its caller's own; and whoever repeats a request pays, and uses up, nothing more."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.signing import derived, token
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import KeyQuota, PriceSettings
from fairlane.queues.metrics import TASKS_RESUBMITTED

from .asking import CHAT, NATIVE, Asking

pytestmark = pytest.mark.anyio

ASYNC = Asking("/api/openai", {**NATIVE, "async": True})


async def task_of(talk: Talk, key_id: str, **headers: str) -> str:
    async with talk.client(secret(key_id), **headers) as http:
        answer = await ASYNC(http)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["taskId"])


async def test_each_key_and_each_user_of_one_has_its_own(redis_url: str, tmp_path: Path) -> None:
    keys = [key("one"), key("two"), key("site", delegating=True)]
    async with talking(redis_url, tmp_path, keys=keys) as talk, talk.worker2(["m"], slots=9):
        ids = [
            await task_of(talk, "one"),
            await task_of(talk, "two"),
            await task_of(talk, "site", **{"X-Fairlane-User": "ann"}),
            await task_of(talk, "site", **{"X-Fairlane-User": "bob"}),
        ]
        assert len(set(ids)) == 4
        assert await task_of(talk, "one") == ids[0]
        assert await task_of(talk, "site", **{"X-Fairlane-User": "bob"}) == ids[3]


async def test_who_brings_too_many_keys_is_refused_new_ones_and_nobody_else_is(
    redis_url: str, tmp_path: Path
) -> None:
    keys = [key("one"), key("site", delegating=True), key("ops", scopes=["admin"])]
    settings = {"max_idempotency_keys": 3, "idempotency_ttl_ms": 3_600_000}
    async with talking(redis_url, tmp_path, keys=keys, **settings) as talk, talk.worker2(["m"], slots=9):
        ann, bob = ({"X-Fairlane-User": name} for name in ("ann", "bob"))
        async with talk.client(secret("site"), **ann) as http, talk.client(secret("ops")) as ops:
            first = [(await ASYNC(http, f"n-{n}")).json()["taskId"] for n in range(3)]
            refused = await ASYNC(http, "n-3")
            assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_IDEMPOTENCY_KEYS")
            assert 1_190_000 < refused.json()["retryAfterMs"] <= 1_200_000, "a third of the time"
            assert refused.headers["x-should-retry"] == "false"
            openai = await Asking("/v1/chat/completions", CHAT)(http, "n-3")
            assert (openai.status_code, openai.json()["error"]["code"]) == (429, "TOO_MANY_IDEMPOTENCY_KEYS")
            assert (await ASYNC(http, "n-1")).json()["taskId"] == first[1], "a known one"
            assert (await http.post("/api/openai", json={**NATIVE, "async": True})).status_code == 202, "none"
            metrics = (await ops.get("/metrics")).text
            told = re.findall(
                r'fairlane_tasks_rejected_total\{[^}]*code="TOO_MANY_IDEMPOTENCY_KEYS"[^}]*\} (\S+)', metrics
            )
            assert sum(map(float, told)) == 2
        for other in (("site", bob), ("one", {})):
            assert await task_of(talk, other[0], **other[1])


async def test_a_repetition_is_no_second_use_of_a_token_and_another_users_token_is_told_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    site = key("site", delegating=True, signing=True, signing_key=derived(secret("site")).hex())
    async with talking(redis_url, tmp_path, keys=[site]) as talk, talk.worker2(["m"], slots=9):
        once = token(secret("site"), user="ann", jti="once", uses=1)
        async with talk.client(once) as ann, talk.client(token(secret("site"), user="bob")) as bob:
            first = (await ASYNC(ann)).json()["taskId"]
            for _ in range(3):
                assert (await ASYNC(ann)).json()["taskId"] == first
            used_up = await ASYNC(ann, "another")
            assert (used_up.status_code, used_up.json()["code"]) == (403, "TOKEN_USED_UP")
            assert (await ASYNC(bob)).json()["taskId"] != first


async def test_a_repetition_takes_nothing_of_limits_and_is_charged_once(
    redis_url: str, tmp_path: Path
) -> None:
    prices = [PriceSettings.model_validate({"model": "m", "input": 0, "output": 0, "request": "0.5"})]
    limits: dict[str, Any] = {"requests_per_day": 1}
    keys = [
        key("ops", scopes=["admin"]),
        key("app", tier="paid", quota=KeyQuota.model_validate({"budget": 1, "per": "day"}), limits=limits),
    ]
    async with (
        talking(redis_url, tmp_path, keys=keys, prices=prices) as talk,
        talk.worker2(["m"]) as worker,
        talk.client(secret("app")) as app,
        talk.client(secret("ops")) as ops,
    ):
        chat = Asking("/v1/chat/completions", CHAT)
        first = talk.later(chat(app))
        task = await worker.take()
        joined = talk.later(chat(app))
        metrics = talk.served.gateway.metrics
        await until(lambda: metrics.values[TASKS_RESUBMITTED.name]["joined",] == 1, "one to join")
        await worker.answer(task, {"content": "hi"})
        answers = [await first, await joined, await chat(app)]
        assert {answer.content for answer in answers} == {answers[0].content}
        assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"
        assert (await chat(app, "another")).status_code == 429

        async def recorded() -> int:
            rows = (await ops.get("/api/admin/usage/tasks", params={"key": "app"})).json()["tasks"]
            return len(rows)

        async def once() -> bool:
            return await recorded() == 1

        await until(once, "its one record")
        row = (await ops.get("/api/admin/balances", params={"key": "app"})).json()["rows"][0]
        assert (row["budget"]["used"], row["budget"]["reserved"]) == (0.5, 0)
