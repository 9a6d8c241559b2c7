"""What was used, as operators and callers are told it: by HTTP and on the command line, from tasks that ran."""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text
from tests.integration.native.keys import key, secret
from tests.support.databases import Postgres, running_postgres
from tests.support.records import NOON, entry, put
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.runtime import Gateway
from fairlane.gateway.usage import reports
from fairlane.gateway.usage.usage import DAY_MS, UsageTable

pytestmark = pytest.mark.anyio
Start = Callable[..., AbstractAsyncContextManager[Talk]]
KEYS = [
    key("ops", scopes=["admin"]),
    key("acme", tier="paid"),
    key("site", delegating=True),
    key("eyes", scopes=["viewer"]),
]


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    async with talking(redis_url, tmp_path, keys=KEYS, database_url=database_url) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        yield talk


@pytest.fixture
async def unused(shared_gateway: Start, shared_database: dict[str, str]) -> AsyncIterator[Talk]:
    """A gateway that tests share, which run no task."""
    async with shared_gateway(keys=KEYS, **shared_database) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        yield talk


async def told(client: httpx2.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def write(gateway: Gateway, *packed: bytes) -> None:
    """Put rows where the outbox would bring them."""
    async with gateway.database.writing() as connection:
        assert await UsageTable(lambda queue: queue.partition("_")[0]).write(connection, packed) == len(
            packed
        )


async def filled(talk: Talk) -> None:
    """Three days of two models, two keys and three users."""
    tasks = [
        entry("a", user="acme", key="acme", model="m1", tokens=(100, 1000)),
        entry("b", user="site/ann", model="m1", tokens=(10, 20), queue="free_stream"),
        entry("c", user="site/bob", model="m2", tokens=(1, 2), state="failed", code="TOTAL_TIMEOUT"),
        entry("d", user="site/bob", model="m2", ended=NOON - DAY_MS, state="cancelled", code="CANCELLED"),
        entry("e", user="site/bob", model="m2", ended=NOON - 2 * DAY_MS, more="5 6 1"),
    ]
    await write(talk.served.gateway, *tasks)


PERIOD = {"from": NOON - 5 * DAY_MS, "to": NOON + DAY_MS}


async def test_a_task_that_ran_is_told_soon_after_it_ended(talk: Talk) -> None:
    async with talk.worker2(["m"]) as worker, talk.client(secret("acme"), **{"X-Request-Id": "r-77"}) as acme:
        call = talk.later(acme.post("/api/openai", json={"model": "m", "messages": []}))
        task = await worker.take()
        await worker.answer(
            task, result={"content": "hi"}, usage={"inputTokens": 7, "outputTokens": 5, "cachedTokens": 3}
        )
        assert (await call).status_code == 200

        async def recorded() -> bool:
            return len((await told(talk.http, "/api/admin/usage/tasks"))["tasks"]) == 1

        await until(recorded)
        [row] = (await told(talk.http, "/api/admin/usage/tasks", key="acme"))["tasks"]
        assert row["taskId"] == task["taskId"]
        assert row["enqueuedAt"] <= row["grantedAt"] <= row["endedAt"]
        shown = {
            name: row[name] for name in ("status", "code", "user", "tier", "queue", "model", "requestId")
        }
        assert shown == {
            "status": "completed",
            "code": "",
            "user": "acme",
            "tier": "paid",
            "queue": "paid_stream",
            "model": "m",
            "requestId": "r-77",
        }
        tokens = ("inputTokens", "outputTokens", "cachedTokens", "reasoningTokens", "estimated")
        assert [row[name] for name in tokens] == [7, 5, 3, None, False]
        mine = await told(acme, "/api/usage")
        assert [(row["tasks"], row["inputTokens"]) for row in mine["rows"]] == [(1, 7)]
        assert (await told(talk.http, "/api/admin/usage", by="hour"))["total"]["tasks"] == 1


async def test_usage_is_added_up_by_what_is_asked(talk: Talk) -> None:
    await filled(talk)

    async def by(names: str, **query: Any) -> list[list[Any]]:
        report = await told(talk.http, "/api/admin/usage", by=names, **{**PERIOD, **query})
        assert report["by"] == names.split(",")
        assert sum(row["tasks"] for row in report["rows"]) == report["total"]["tasks"]
        return [
            [*(row[name] for name in report["by"]), row["tasks"], row["outputTokens"]]
            for row in report["rows"]
        ]

    assert await by("model") == [["m1", 2, 1020], ["m2", 3, 42]]
    assert await by("key") == [["acme", 1, 1000], ["site", 4, 62]]
    assert await by("user") == [["acme", 1, 1000], ["site/bob", 3, 42], ["site/ann", 1, 20]]
    assert await by("tier") == [["paid", 4, 1042], ["free", 1, 20]]
    assert await by("status") == [["completed", 3, 1040], ["cancelled", 1, 20], ["failed", 1, 2]]
    assert await by("code", status="failed") == [["TOTAL_TIMEOUT", 1, 2]]
    assert await by("code", category="timeout_or_capacity") == [["TOTAL_TIMEOUT", 1, 2]]
    assert await by("code", category="worker") == []
    [late] = (await told(talk.http, "/api/admin/usage/tasks", category="timeout_or_capacity"))["tasks"]
    assert (late["taskId"], late["code"], late["category"]) == ("c", "TOTAL_TIMEOUT", "timeout_or_capacity")
    day = "2026-09-21"
    assert (await by("day"))[-1] == [day, 3, 1022]
    assert (await by("day,model"))[-2:] == [[day, "m1", 2, 1020], [day, "m2", 1, 2]]
    assert await by("model", user="site/bob") == [["m2", 3, 42]]
    assert await by("user", model="m1", tier="free") == [["site/ann", 1, 20]]
    assert await by("model", **{"from": day, "to": "2026-09-22"}) == [["m1", 2, 1020], ["m2", 1, 2]]
    report = await told(talk.http, "/api/admin/usage", **PERIOD, limit=1)
    assert (len(report["rows"]), report["more"], report["total"]["tasks"]) == (1, True, 5)
    assert report["total"] == {
        "tasks": 5,
        "completed": 3,
        "failed": 1,
        "cancelled": 1,
        "inputTokens": 131,
        "outputTokens": 1062,
        "cachedTokens": 5,
        "reasoningTokens": 6,
        "estimated": 1,
        "waitedMs": 1000,
        "ranMs": 3500,
        "cost": 0,
    }


async def test_usage_is_added_up_by_route_and_told_with_its_template(talk: Talk) -> None:
    await filled(talk)
    routed = [
        entry("r1", route="summary", template="brief\nv1\nen", model="m1", tokens=(1, 5)),
        entry("r2", route="summary", model="m2", tokens=(1, 7), key="acme", user="acme"),
        entry("r3", route="match", model="m2", ended=NOON - DAY_MS, tokens=(1, 9)),
    ]
    await write(talk.served.gateway, *routed)

    async def by(names: str, **query: Any) -> list[list[Any]]:
        report = await told(talk.http, "/api/admin/usage", by=names, **{**PERIOD, **query})
        assert sum(row["tasks"] for row in report["rows"]) == report["total"]["tasks"]
        return [[*(row[name] for name in report["by"]), row["outputTokens"]] for row in report["rows"]]

    assert await by("route") == [["summary", 12], ["match", 9]]
    assert await by("route,model", key="site") == [["match", "m2", 9], ["summary", "m1", 5]]
    assert await by("model", route="summary") == [["m2", 7], ["m1", 5]]
    assert [row[-1] for row in await by("day", route="match")] == [9]
    assert (await by("model"))[0] == ["m1", 1025], "tasks with a route are among all"
    for query in ({"by": "route,user"}, {"by": "code", "route": "summary"}, {"by": "route,hour"}):
        refused = await talk.http.get("/api/admin/usage", params=query)
        assert refused.status_code == 400
        assert "the tasks themselves are at" in refused.json()["error"]
    rows = (await told(talk.http, "/api/admin/usage/tasks", route="summary"))["tasks"]
    assert [(row["taskId"], row["route"], row["template"], row["templateVersion"]) for row in rows] == [
        ("r2", "summary", "", ""),
        ("r1", "summary", "brief", "v1"),
    ]
    assert [
        row["taskId"] for row in (await told(talk.http, "/api/admin/usage/tasks", template="brief"))["tasks"]
    ] == ["r1"]
    async with talk.client(secret("acme")) as acme:
        own = await told(acme, "/api/usage", by="route", **PERIOD)
        assert [(row["route"], row["outputTokens"]) for row in own["rows"]] == [("summary", 7)]


async def test_tasks_come_in_pages_that_miss_none(talk: Talk) -> None:
    await write(talk.served.gateway, *(entry(f"{n:02}", ended=NOON + n // 4) for n in range(25)))
    seen, after = [], ""
    while True:
        page = await told(talk.http, "/api/admin/usage/tasks", limit=4, after=after)
        seen += [row["taskId"] for row in page["tasks"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [f"{n:02}" for n in reversed(range(25))]
    some = await told(talk.http, "/api/admin/usage/tasks", **{"from": NOON + 2, "to": NOON + 3})
    assert [row["taskId"] for row in some["tasks"]] == ["11", "10", "09", "08"]
    for user, found in (("", ["07"]), ("nobody", [])):
        one = await told(talk.http, "/api/admin/usage/tasks", task="07", user=user)
        assert ([row["taskId"] for row in one["tasks"]], one["next"]) == (found, None)
    none = await told(talk.http, "/api/admin/usage/tasks", user="nobody", status="failed")
    assert none["tasks"] == []


async def test_costs_are_told_in_credits(talk: Talk) -> None:
    price = "270000 70000 1100000 1100000 0"
    await write(
        talk.served.gateway,
        entry("a", user="site/ann", price=price, cost="1000001"),
        entry("b", user="site/ann", price=price, cost="0", state="failed", code="TOTAL_TIMEOUT"),
        entry(
            "c",
            user="site/bob",
            model="huge",
            price=" ".join(["100000000000000"] * 5),
            cost="938860800000000",
        ),
        entry("d", user="acme", key="acme", model="free"),
    )

    async def costs(path: str = "/api/admin/usage", **query: Any) -> list[Any]:
        answer = await talk.http.get(path, params={**PERIOD, **query})
        report = json.loads(answer.text, parse_float=Decimal)
        assert sum(row["cost"] for row in report["rows"]) == report["total"]["cost"]
        return [row["cost"] for row in report["rows"]]

    assert await costs(by="model") == [Decimal("1.000001"), 0, 938860800]
    assert await costs(by="user", key="site") == [Decimal("1.000001"), 938860800]
    assert await costs(by="day") == [Decimal("938860801.000001")]
    async with talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as ann:
        answer = await ann.get("/api/usage", params=PERIOD)
        assert '"cost":1.000001' in answer.text
    rows = json.loads((await talk.http.get("/api/admin/usage/tasks")).text, parse_float=Decimal)["tasks"]
    assert [(row["taskId"], row["cost"], row["price"]) for row in reversed(rows)] == [
        ("a", Decimal("1.000001"), "0.27/0.07/1.1/1.1/0"),
        ("b", 0, "0.27/0.07/1.1/1.1/0"),
        ("c", 938860800, "/".join(["100000000"] * 5)),
        ("d", None, ""),
    ]
    answer = await talk.http.get("/api/admin/usage/tasks", params={"format": "csv"})
    assert [row["cost"] for row in csv.DictReader(io.StringIO(answer.text))][::-1] == [
        "1.000001",
        "0",
        "938860800",
        "",
    ]


async def test_it_can_be_had_as_csv(talk: Talk) -> None:
    await write(talk.served.gateway, entry("a", user="=cmd|calc", model='m,"1"'))
    for query, accept in (({"format": "csv"}, "*/*"), ({}, "text/csv, */*;q=0.1")):
        answer = await talk.http.get(
            "/api/admin/usage", params={"by": "user,model", **PERIOD, **query}, headers={"Accept": accept}
        )
        assert answer.headers["content-type"].startswith("text/csv")
        assert answer.headers["content-disposition"] == 'attachment; filename="usage.csv"'
        [row] = csv.DictReader(io.StringIO(answer.text))
        assert (row["user"], row["model"], row["tasks"]) == ("'=cmd|calc", 'm,"1"', "1")
    answer = await talk.http.get("/api/admin/usage/tasks", params={"format": "csv"})
    [row] = csv.DictReader(io.StringIO(answer.text))
    assert (row["taskId"], row["cachedTokens"], row["estimated"]) == ("a", "", "false")


async def test_callers_see_what_is_their_own(talk: Talk) -> None:
    await filled(talk)

    async def seen(client: httpx2.AsyncClient, **query: Any) -> dict[str, int]:
        report = await told(client, "/api/usage", by="user", **PERIOD, **query)
        return {row["user"]: row["tasks"] for row in report["rows"]}

    async with talk.client(secret("acme")) as acme, talk.client(secret("site")) as site:
        assert await seen(acme) == {"acme": 1}
        assert await seen(acme, user="acme") == {"acme": 1}
        refused = await acme.get("/api/usage", params={"user": "site/bob"})
        assert (refused.status_code, refused.json()["error"]) == (400, "this key has no users but itself")
        assert await seen(site) == {"site/bob": 3, "site/ann": 1}
        assert await seen(site, user="ann") == await seen(site, user="site/ann") == {"site/ann": 1}
        assert await seen(site, user="acme") == {}
    async with talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as ann:
        assert await seen(ann) == {"site/ann": 1}
        assert (await ann.get("/api/usage", params={"user": "bob"})).status_code == 400
    async with (
        talk.client(secret("acme")) as acme,
        talk.client(secret("eyes")) as eyes,
        talk.client() as nobody,
    ):
        assert (await acme.get("/api/admin/usage")).status_code == 403
        assert (await acme.get("/api/admin/usage/tasks")).status_code == 403
        assert (await eyes.get("/api/admin/usage")).status_code == 200
        assert (await nobody.get("/api/usage")).status_code == 401


@pytest.mark.parametrize(
    ("query", "param", "sentence"),
    [
        ({"by": "colour"}, "by", "by must be one to three of model, key, user"),
        ({"by": "day,hour"}, "by", "by must be day or hour, not both"),
        ({"by": "user,code"}, "user", "usage of users is added up by day, and not by code"),
        ({"by": "hour", "user": "ann"}, "user", "usage of users is added up by day, and not by hour"),
        ({"from": "yesterday"}, "from", "from must be a day such as 2026-11-23, or ms since 1970"),
        ({"to": "2026-13-01"}, "to", "to must be a day"),
        ({"from": "2026-02-02", "to": "2026-02-02"}, "from", "from must be before to"),
        ({"by": "hour", "from": "2026-01-01"}, "from", "hours are kept for 3 days"),
        ({"limit": "0"}, "limit", "limit should be greater than or equal to 1"),
        ({"format": "xml"}, "format", "format must be csv or json"),
        ({"user": "a\0"}, "user", "user must hold no control characters"),
    ],
)
async def test_what_cannot_be_told_is_a_sentence(
    unused: Talk, query: dict[str, str], param: str, sentence: str
) -> None:
    answer = await unused.http.get("/api/admin/usage", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(sentence), answer.text
    async with unused.client(secret("acme")) as acme:
        assert (await acme.get("/api/usage", params={"limit": "1001"})).status_code == 400
    wrong = await unused.http.get("/api/admin/usage/tasks", params={"after": "1 OR 1=1"})
    assert (wrong.status_code, wrong.json()["error"]) == (400, "after must be the `next` of a page before")


async def test_a_parameter_that_is_unknown_or_given_twice_is_refused(unused: Talk) -> None:
    for path in ("/api/admin/usage", "/api/admin/usage/tasks", "/api/usage"):
        wrong = await unused.http.get(f"{path}?modle=m1")
        assert wrong.status_code == 400
        assert wrong.json()["error"].startswith("there is no parameter modle: ")
        twice = await unused.http.get(f"{path}?model=m1&model=m2")
        assert (twice.status_code, twice.json()["error"]) == (400, "model is given twice")
    async with unused.client(secret("acme")) as acme:
        assert (await acme.get("/api/usage?key=site")).status_code == 400


async def test_while_the_database_is_away_it_is_503(redis_url: str, tmp_path: Path) -> None:
    with running_postgres() as server:
        async with talking(redis_url, tmp_path, keys=KEYS, database_url=server.new("usage")) as talk:
            server.stop()
            async with talk.client(secret("ops")) as ops, talk.client(secret("acme")) as acme:
                told_ops, told_acme = await ops.get("/api/admin/usage"), await acme.get("/api/usage")
            assert told_ops.status_code == told_acme.status_code == 503
            assert told_ops.json()["code"] == "DATABASE_UNAVAILABLE"
            assert "PostgreSQL" in told_ops.json()["reason"]
            assert "reason" not in told_acme.json()
            async with talk.worker2(["m"]) as worker, talk.client(secret("acme")) as acme:
                call = talk.later(acme.post("/api/openai", json={"model": "m", "messages": []}))
                await worker.answer(await worker.take(), result={"content": "hi"})
                assert (await call).status_code == 200, "tasks go on"
            server.start()

            async def recorded() -> bool:
                async with talk.client(secret("ops")) as ops:
                    answer = await ops.get("/api/admin/usage/tasks")
                    return answer.status_code == 200 and len(answer.json()["tasks"]) == 1

            await until(recorded)


async def test_reports_that_hang_hold_up_neither_keys_nor_records(
    redis_url: str, tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "WAIT_S", 0.2)
    monkeypatch.setattr(reports, "REPORT_S", 4.0)
    url = postgres.new("usage")
    async with talking(redis_url, tmp_path, keys=KEYS, database_url=url) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        made = (await talk.http.post("/api/admin/keys", json={"id": "app"})).json()["secret"]
        other = Database(parse_address(url, tmp_path))
        async with (
            talk.client(made) as app,
            talk.client(secret("acme")) as acme,
            talk.client(secret("site")) as site,
        ):
            async with other.writing(60) as connection:
                await connection.execute(text("LOCK TABLE usage_users IN ACCESS EXCLUSIVE MODE"))
                calls = [
                    talk.later(client.get("/api/usage", params={"by": "user,model,day", "from": "0"}))
                    for client in (acme, site)
                    for _ in range(6)
                ]
                assert (await app.get("/api/me")).status_code == 200
                assert (await talk.http.post("/api/admin/keys/app/revoke", json={})).status_code == 200

                async def refused() -> bool:
                    return (await app.get("/api/me")).status_code == 401

                await until(refused)
                answers = [await call for call in calls]
            codes = sorted((answer.status_code, answer.json()["code"]) for answer in answers)
            assert codes == [(429, "TOO_MANY_CALLS")] * 10 + [(503, "REPORT_TOO_LONG")] * 2
            slow = next(answer for answer in answers if answer.status_code == 503)
            assert slow.json()["error"].startswith("This report takes longer than 4 s: ask for fewer days")
            assert (await acme.get("/api/usage")).status_code == 200
        await other.close()


async def test_beyond_outbox_max_entries_no_task_is_accepted(redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path, outbox_max_entries=2) as talk:
        gateway = talk.served.gateway
        async with talk.worker2(["m"]):
            await put(gateway.link, b"?", b"?", kind="of tomorrow")
            await gateway.scheduler.sweep()  # which tells how many there are
            refused = await talk.http.post("/api/openai", json={"model": "m", "messages": []})
            assert (refused.status_code, refused.json()["code"]) == (503, "OUTBOX_FULL")
            assert refused.headers["retry-after"] == "10"
            counts = (await talk.http.get("/api/admin/overview")).json()["counts"]
            assert (counts["recordsWaiting"], counts["recordsMax"]) == (2, 2)

            async def told() -> bool:
                return "fairlane_outbox_entries 2.0" in (await talk.http.get("/metrics")).text

            await until(told)
