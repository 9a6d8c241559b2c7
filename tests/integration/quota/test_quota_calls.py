"""Quotas as operators and callers meet them: granted, used, refused, shown; by HTTP, on both databases."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integration.native.keys import key, secret
from tests.support.databases import running_postgres
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.signing import token
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import KeyQuota, PriceSettings

pytestmark = pytest.mark.anyio
Start = Callable[..., AbstractAsyncContextManager[Talk]]
QUOTA = "/api/admin/balances"
M = PriceSettings.model_validate({"model": "m", "input": 0, "output": 0, "request": "0.5"})
"""Each task costs half a credit."""
TOKENS = PriceSettings.model_validate({"model": "m", "input": 1, "output": 1})
BODY = {"model": "m", "messages": []}


def quota(**said: Any) -> KeyQuota:
    return KeyQuota.model_validate(said)


KEYS = [
    key("ops", scopes=["admin"]),
    key("eyes", scopes=["viewer"]),
    key("app", tier="paid", quota=quota()),
    key("cheap", tier="paid", quota=quota(otherwise="free")),
    key("daily", quota=quota(budget=1, per="day")),
    key("site", delegating=True, quota=quota(of="user", budget=2, per="month")),
    key("plain"),
]


@pytest.fixture
def prices() -> list[PriceSettings]:
    return [M]


@pytest.fixture
async def talk(
    redis_url: str, tmp_path: Path, database_url: str, prices: list[PriceSettings]
) -> AsyncIterator[Talk]:
    async with talking(redis_url, tmp_path, keys=KEYS, database_url=database_url, prices=prices) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        yield talk


@pytest.fixture
async def nothing_granted(shared_gateway: Start, shared_database: dict[str, str]) -> AsyncIterator[Talk]:
    """A gateway that tests share, which grant nothing and run no task."""
    async with shared_gateway(keys=KEYS, prices=[M], **shared_database) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        yield talk


async def told(client: httpx2.AsyncClient, path: str, status: int = 200, **query: Any) -> dict[str, Any]:
    answer = await client.get(path, params=query)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = json.loads(answer.text, parse_float=Decimal)
    return body


async def grant(talk: Talk, status: int = 201, **body: Any) -> dict[str, Any]:
    answer = await talk.http.post(f"{QUOTA}/grants", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = json.loads(answer.text, parse_float=Decimal)
    return found


async def row_of(talk: Talk, **who: str) -> dict[str, Any]:
    return (await told(talk.http, QUOTA, **who))["rows"][0]  # type: ignore[no-any-return]


async def run(talk: Talk, worker: RawWorker, caller: httpx2.AsyncClient, error: str | None = None) -> None:
    """A task of this caller, from its call to its end."""
    call = talk.later(caller.post("/api/openai", json=BODY))
    task = await worker.take()
    await worker.answer(task, **({"error": error} if error else {"result": {"content": "hi"}}))
    assert ((await call).status_code == 200) is (error is None)


def amounts(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("granted", "spent", "balance", "reserved", "available"))


async def test_what_is_granted_is_held_paid_and_given_back(talk: Talk) -> None:
    assert amounts(await row_of(talk, key="app")) == (0, 0, 0, 0, 0)
    made = await grant(talk, key="app", credits="1.25", note="first", id="invoice-1")
    assert (made["id"], made["new"], made["credits"], made["notes"]) == (
        "invoice-1",
        True,
        Decimal("1.25"),
        [],
    )
    assert (made["of"], made["key"], made["user"], made["active"], made["budget"]) == (
        "key",
        "app",
        None,
        True,
        None,
    )
    async with talk.worker2(["m"]) as worker, talk.client(secret("app")) as app:
        await run(talk, worker, app)
        await run(talk, worker, app, error="no")
        half = Decimal("0.5")
        assert amounts(await row_of(talk, key="app")) == (
            Decimal("1.25"),
            half,
            Decimal("0.75"),
            0,
            Decimal("0.75"),
        )
        call = talk.later(app.post("/api/openai", json=BODY))
        task = await worker.take()
        mine = (await told(app, "/api/me"))["quota"]
        assert amounts(mine) == (Decimal("1.25"), half, Decimal("0.75"), half, Decimal("0.25"))
        assert (mine["of"], mine["budget"], mine["otherwise"], "key" in mine) == ("key", None, None, False)
        refused = await app.post("/api/openai", json=BODY)
        assert (refused.status_code, refused.json()["code"]) == (429, "INSUFFICIENT_QUOTA")
        assert (refused.json()["needed"], refused.json()["available"]) == (0.5, 0.25)
        assert (await worker.answer(task, result={"content": "hi"}), (await call).status_code)[1] == 200

        async def carried() -> bool:
            return len((await told(talk.http, f"{QUOTA}/ledger"))["rows"]) == 4

        await until(carried, "the ledger to have all rows")
    rows = (await told(talk.http, f"{QUOTA}/ledger", key="app"))["rows"]
    assert [(row["kind"], row["fund"], row["amount"], row["reserved"], row["refunded"]) for row in rows] == [
        ("task", "granted", -half, half, 0),
        ("task", "granted", 0, half, half),
        ("task", "granted", -half, half, 0),
        ("grant", "granted", Decimal("1.25"), 0, 0),
    ]
    assert sum(row["amount"] for row in rows) == (await row_of(talk, key="app"))["balance"] == Decimal("0.25")
    assert {row["price"] for row in rows if row["kind"] == "task"} == {"0/0/0/0/0.5"}
    assert (rows[-1]["id"], rows[-1]["grantedBy"], rows[-1]["note"], rows[-1]["ends"]) == (
        "invoice-1",
        "ops",
        "first",
        None,
    )
    used = await told(talk.http, "/api/admin/usage", by="status", key="app")
    assert {row["status"]: row["cost"] for row in used["rows"]} == {"completed": 1, "failed": 0}


async def test_who_cancels_after_output_pays_and_before_it_does_not(talk: Talk) -> None:
    await grant(talk, key="app", credits=2)
    async with talk.worker2(["m"], slots=2) as worker, talk.client(secret("app")) as app:
        for chunks in (0, 1):
            accepted = await app.post("/api/openai", json={**BODY, "async": True})
            task = await worker.take()
            for _ in range(chunks):
                await worker.chunk(task, "hel")
                async with app.stream("GET", f"/api/task/{task['taskId']}/events") as events:
                    async for line in events.aiter_lines():
                        if line == "event: chunk":
                            break
            assert amounts(await row_of(talk, key="app"))[3] == Decimal("0.5"), "it is held"
            assert (await app.post(f"/api/task/{accepted.json()['taskId']}/cancel")).status_code == 200
            assert (await worker.expect("cancel"))["taskId"] == task["taskId"]
            await worker.answer(task, error="cancelled", **({"lastSeq": 1} if chunks else {}))

            async def over() -> bool:
                return bool((await row_of(talk, key="app"))["reserved"] == 0)

            await until(over, "its hold to be over")
            assert (await row_of(talk, key="app"))["balance"] == 2 - chunks * Decimal("0.5")


@pytest.mark.parametrize("prices", [[TOKENS]])
async def test_all_of_a_long_input_is_held(talk: Talk) -> None:
    """Else a few at once overdraw by many times what is there; what an image has in bytes says nothing of its tokens."""
    await grant(talk, key="app", credits=2)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    async with talk.client(secret("app")) as app, talk.worker2(["m"]):
        for content, held in (("a" * 4_000_000, Decimal(1)), ([image, "a" * 4_000_000], Decimal("1.2"))):
            body = {"model": "m", "max_tokens": 1, "async": True, "mode": "stream"}
            body |= {"messages": [{"role": "user", "content": content}]}
            accepted = await app.post("/api/openai", json=body)
            assert accepted.status_code == 202, accepted.text
            assert (await row_of(talk, key="app"))["reserved"] == pytest.approx(held, abs=Decimal("0.0001"))


async def test_the_holder_of_a_token_learns_nothing_of_what_its_key_has(talk: Talk) -> None:
    body = {"id": "signs", "delegating": True, "signing": True, "quota": {}}
    made = (await talk.http.post("/api/admin/keys", json=body)).json()["secret"]
    async with talk.worker2(["m"]), talk.client(token(made, "signs", user="ann")) as ann:
        for pays, knows in (("key", False), ("user", True)):
            change = {"quota": {"of": pays}}
            (await talk.http.patch("/api/admin/keys/signs", json=change)).raise_for_status()
            assert ((await told(ann, "/api/me"))["quota"] is not None) is knows
            refused = await ann.post("/api/openai", json=BODY)
            assert (refused.status_code, refused.json()["code"]) == (429, "INSUFFICIENT_QUOTA")
            assert ("needed" in refused.json(), "credits" in refused.text) == (knows, knows)
            refused = await ann.post("/v1/chat/completions", json=BODY)
            assert refused.json()["error"]["code"] == "insufficient_quota"
            assert ("credits" in refused.text) is knows


async def test_a_task_that_cannot_be_paid_goes_on_in_another_tier(talk: Talk) -> None:
    await grant(talk, key="cheap", credits=0.5)
    async with talk.worker2(["m"]) as worker, talk.client(secret("cheap")) as cheap:
        await run(talk, worker, cheap)
        await run(talk, worker, cheap)

        async def carried() -> bool:
            return len((await told(talk.http, "/api/admin/usage/tasks"))["tasks"]) == 2

        await until(carried)
    tiers = await told(talk.http, "/api/admin/usage", by="tier", key="cheap")
    assert {row["tier"]: row["tasks"] for row in tiers["rows"]} == {"paid": 1, "free": 1}
    row = await row_of(talk, key="cheap")
    assert (row["balance"], row["otherwise"]) == (0, "free")


async def test_a_budget_is_there_without_a_grant_and_is_used_first(talk: Talk) -> None:
    await grant(talk, key="daily", credits=3)
    async with talk.worker2(["m"]) as worker, talk.client(secret("daily")) as daily:
        for _ in range(3):
            await run(talk, worker, daily)
        mine = (await told(daily, "/api/me"))["quota"]
    budget = mine["budget"]
    assert (budget["limit"], budget["used"], budget["remaining"], budget["per"]) == (1, 1, 0, "day")
    assert budget["ends"] % 86_400_000 == 0, "midnight of UTC"
    assert (mine["spent"], mine["balance"], mine["available"]) == (
        Decimal("0.5"),
        Decimal("2.5"),
        Decimal("2.5"),
    )


async def test_each_user_of_a_delegating_key_pays_alone(talk: Talk) -> None:
    made = await grant(talk, user="site/ann", credits=1)
    assert (made["of"], made["key"], made["user"], made["notes"]) == ("user", "site", "site/ann", [])
    async with talk.worker2(["m"]) as worker:
        async with talk.client(secret("site"), **{"X-Fairlane-User": "bob"}) as bob:
            await run(talk, worker, bob)
            assert (await told(bob, "/api/me"))["quota"]["available"] == Decimal("1.5")
        async with talk.client(secret("site")) as nobody:
            await run(talk, worker, nobody)
    async with talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as ann:
        assert (await told(ann, "/api/me"))["quota"]["available"] == 3

    async def carried() -> bool:
        rows = (await told(talk.http, QUOTA, key="site"))["rows"]
        return [row["user"] for row in rows] == [None, "site", "site/ann", "site/bob"]

    await until(carried, "all users to be listed")
    rows = (await told(talk.http, QUOTA, key="site"))["rows"]
    assert [(row["active"], row["available"]) for row in rows] == [
        (False, 0),
        (True, Decimal("1.5")),
        (True, 3),
        (True, Decimal("1.5")),
    ]
    ledger = (await told(talk.http, f"{QUOTA}/ledger", user="site/bob"))["rows"]
    assert [(row["fund"], row["amount"], row["user"]) for row in ledger] == [
        ("month", Decimal("-0.5"), "site/bob")
    ]
    assert ledger[0]["ends"] > ledger[0]["at"]


async def test_the_same_grant_is_made_once(talk: Talk) -> None:
    answers = await asyncio.gather(
        *(
            talk.http.post(f"{QUOTA}/grants", json={"key": "app", "credits": 5, "id": "i-1"})
            for _ in range(10)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert (await row_of(talk, key="app"))["balance"] == 5
    other = await grant(talk, 409, key="app", credits=6, id="i-1")
    assert other["code"] == "GRANT_EXISTS"
    await grant(talk, 409, key="cheap", credits=5, id="i-1")
    back = await grant(talk, key="app", credits=-7)
    assert (back["balance"], back["available"]) == (-2, 0)
    entries = (await told(talk.http, "/api/admin/audit"))["entries"]
    grants = [entry for entry in entries if entry["action"] == "grant"]
    assert [(entry["target"], entry["actor"]) for entry in grants] == [("key app", "ops")] * 2
    assert (grants[1]["before"], grants[1]["after"]) == (
        {"balance": 0},
        {"balance": 5, "id": "i-1", "credits": 5, "note": ""},
    )


async def test_what_is_of_no_use_is_said(talk: Talk) -> None:
    assert (await grant(talk, key="plain", credits=1))["notes"] == [
        "The key plain has no quota: its tasks cost nothing until it has one"
    ]
    assert (await grant(talk, key="site", credits=1))["notes"] == [
        "By the quota of the key site each user of it pays: what was granted lies idle until that changes"
    ]
    assert (await grant(talk, user="app/ann", credits=1))["notes"] == [
        "By the quota of the key app it pays for all its users: what was granted lies idle until that changes"
    ]
    (await talk.http.post("/api/admin/keys", json={"id": "gone", "quota": {}})).raise_for_status()
    (await talk.http.post("/api/admin/keys/gone/revoke", json={})).raise_for_status()
    assert (await grant(talk, key="gone", credits=1))["notes"] == [
        "The key gone is not valid: the credits cannot be used"
    ]
    assert (await row_of(talk, key="gone"))["active"] is False


async def test_a_key_that_gets_a_quota_while_it_runs_pays_from_then_on(talk: Talk) -> None:
    made = await talk.http.post("/api/admin/keys", json={"id": "shop"})
    async with talk.worker2(["m"]) as worker, talk.client(made.json()["secret"]) as shop:
        await run(talk, worker, shop)
        assert (await told(shop, "/api/me"))["quota"] is None
        change = {"quota": {"budget": "0.5", "per": "day"}}
        (await talk.http.patch("/api/admin/keys/shop", json=change)).raise_for_status()
        await run(talk, worker, shop)
        assert (await shop.post("/api/openai", json=BODY)).status_code == 429
        (await talk.http.patch("/api/admin/keys/shop", json={"quota": {"budget": 1}})).raise_for_status()
        await run(talk, worker, shop)
        (await talk.http.patch("/api/admin/keys/shop", json={"quota": None})).raise_for_status()
        await run(talk, worker, shop)


async def test_pages_of_balances_and_of_the_ledger_miss_none(talk: Talk) -> None:
    names = [f"site/{name}" for name in ("ann", "Ann", "a%b", "ä", "zoë", "x_y", "b")]
    for number, name in enumerate(names):
        await grant(talk, user=name, credits=number + 1, id=f"g-{number}")
    await grant(talk, key="app", credits=1)
    seen: list[Any] = []
    after = ""
    while True:
        page = await told(talk.http, QUOTA, limit=3, after=after)
        seen += [row["user"] or row["key"] for row in page["rows"]]
        after = page["next"]
        if after is None:
            break
    assert seen == ["app", *sorted(names, key=lambda name: name.encode())]
    found = [row["user"] for row in (await told(talk.http, QUOTA, text="A%"))["rows"]]
    assert found == ["site/a%b"]
    ids: list[str] = []
    after = ""
    while True:
        page = await told(talk.http, f"{QUOTA}/ledger", limit=2, after=after, kind="grant")
        ids += [row["id"] for row in page["rows"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(ids[1:]) == [f"g-{number}" for number in range(7)]
    assert (await told(talk.http, f"{QUOTA}/ledger", kind="task"))["rows"] == []
    assert (await told(talk.http, f"{QUOTA}/ledger", to="2020-01-01"))["rows"] == []
    answer = await talk.http.get(f"{QUOTA}/ledger", params={"format": "csv", "user": "site/ann"})
    assert answer.headers["content-disposition"] == 'attachment; filename="ledger.csv"'
    assert [(row["id"], row["amount"], row["user"]) for row in csv.DictReader(io.StringIO(answer.text))] == [
        ("g-0", "1", "site/ann")
    ]


async def test_no_key_is_taken_for_another_one(talk: Talk) -> None:
    for key_id in ("Site", "site-2"):
        (await talk.http.post("/api/admin/keys", json={"id": key_id, "delegating": True})).raise_for_status()
        await grant(talk, user=f"{key_id}/ann", credits=1)
    await grant(talk, user="site/ann", credits=1)
    rows = (await told(talk.http, QUOTA, key="site"))["rows"]
    assert [row["user"] for row in rows] == [None, "site/ann"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"credits": 1}, "name who is granted: key or user"),
    ({"key": "app", "user": "site/ann", "credits": 1}, "name a key or a user, not both"),
    (
        {"user": "site/", "credits": 1},
        "user must be one of a delegating key's, as the task list names it: key/name",
    ),
    ({"user": "site/a\x00b", "credits": 1}, "user must be one of a delegating key's"),
    ({"key": "a\x00b", "credits": 1}, "key must be the id of a key"),
    ({"key": "app", "credits": 0}, "credits must not be 0"),
    ({"key": "app", "credits": 1e10}, "credits should be from -1000000000 to 1000000000 credits"),
    ({"key": "app", "credits": True}, "credits should be a number of credits, such as 12.5"),
    ({"key": "app", "credits": 1, "note": "a\nb"}, "note may hold no control characters"),
    ({"key": "app", "credits": 1, "amount": 1}, "'amount' is no part of this call"),
]


@pytest.mark.parametrize(("body", "sentence"), BAD)
async def test_a_grant_that_cannot_be_meant_is_refused(
    nothing_granted: Talk, body: dict[str, Any], sentence: str
) -> None:
    assert (await grant(nothing_granted, 400, **body))["error"].startswith(sentence)
    assert (await told(nothing_granted.http, QUOTA))["rows"] == []


async def test_nobody_is_found_who_is_not_there(nothing_granted: Talk) -> None:
    for body in ({"key": "nosuch"}, {"user": "nosuch/ann"}):
        assert (await grant(nothing_granted, 404, **body, credits=1))["code"] == "KEY_NOT_FOUND"
        assert (await told(nothing_granted.http, QUOTA, 404, **body))["code"] == "KEY_NOT_FOUND"
    for query in (
        {"key": "a b"},
        {"user": "a\x00"},
        {"nosuch": "1"},
        {"limit": "201"},
        {"key": "a", "user": "b/c"},
    ):
        assert (await nothing_granted.http.get(QUOTA, params=query)).status_code == 400
    for query in (
        {"kind": "hold"},
        {"after": "x"},
        {"after": "1.a"},
        {"from": "soon"},
        {"after": "9" * 20 + ".a.granted"},
    ):
        assert (await nothing_granted.http.get(f"{QUOTA}/ledger", params=query)).status_code == 400, query


async def test_viewers_see_and_do_not_grant_and_callers_do_neither(nothing_granted: Talk) -> None:
    async with nothing_granted.client(secret("eyes")) as eyes, nothing_granted.client(secret("app")) as app:
        for path in (QUOTA, f"{QUOTA}/ledger"):
            assert (await eyes.get(path)).status_code == 200
            assert (await app.get(path)).status_code == 403
        for client in (eyes, app):
            refused = await client.post(f"{QUOTA}/grants", json={"key": "app", "credits": 1})
            assert refused.status_code == 403
    assert (await row_of(nothing_granted, key="app"))["balance"] == 0


async def test_while_the_database_is_unavailable_tasks_use_the_balances_in_redis_and_no_credits_are_granted(
    redis_url: str, tmp_path: Path
) -> None:
    with running_postgres() as server:
        url = server.new("quota")
        async with (
            talking(redis_url, tmp_path, keys=KEYS, database_url=url, prices=[M]) as talk,
            talk.worker2(["m"]) as worker,
            talk.client(secret("app")) as app,
            talk.client(secret("cheap")) as cheap,
        ):
            talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
            await grant(talk, key="app", credits=1)
            await run(talk, worker, app)
            server.stop()
            assert (await told(talk.http, QUOTA, 503))["code"] == "DATABASE_UNAVAILABLE"
            assert (await grant(talk, 503, key="app", credits=1))["code"] == "DATABASE_UNAVAILABLE"
            refused = await cheap.post("/api/openai", json=BODY)
            assert (refused.status_code, refused.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
            assert (await told(app, "/api/me"))["quota"]["balance"] == Decimal("0.5"), "Redis knows it"
            await run(talk, worker, app)
            server.start()

            async def back() -> bool:
                return (await cheap.get("/api/me")).status_code == 200

            await until(back)
            assert (await row_of(talk, key="app"))["balance"] == 0
