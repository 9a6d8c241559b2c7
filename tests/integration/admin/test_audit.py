"""Who changed what: the audit record, its pages, the log line, and whose business it is."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.native.keys import key, secret
from tests.support.talk import Talk

from .operating import audit, change

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_every_change_leaves_one_entry_with_who_what_before_and_after(here: Talk, there: Talk) -> None:
    await change(here, "queue", "paid_stream", weight=4, paused=True)
    await change(there, "model", "org/m", concurrency=8)
    await change(there, "queue", "paid_stream", weight=None)
    page = await audit(here)
    now = (await here.state())["now"]
    assert page["next"] is None
    assert all(now - 60_000 < entry["at"] <= now for entry in page["entries"])
    told = [
        {name: entry[name] for name in ("actor", "action", "target", "before", "after")}
        for entry in page["entries"]
    ]
    assert told == [
        {
            "actor": "(open)",
            "action": "update",
            "target": "queue paid_stream",
            "before": {"weight": 4},
            "after": {"weight": 8},
        },
        {
            "actor": "(open)",
            "action": "update",
            "target": "model org/m",
            "before": {"concurrency": None},
            "after": {"concurrency": 8},
        },
        {
            "actor": "(open)",
            "action": "update",
            "target": "queue paid_stream",
            "before": {"weight": 8, "paused": False},
            "after": {"weight": 4, "paused": True},
        },
    ]


async def test_the_record_is_read_in_pages_from_the_newest_back(here: Talk) -> None:
    for number in range(1, 6):
        await change(here, "model", "m", concurrency=number)
    whole = (await audit(here))["entries"]
    assert [entry["after"]["concurrency"] for entry in whole] == [5, 4, 3, 2, 1]
    seen: list[dict[str, Any]] = []
    page = await audit(here, limit=2)
    while page["next"]:
        seen += page["entries"]
        page = await audit(here, limit=2, after=page["next"])
    assert seen + page["entries"] == whole


async def test_changes_and_their_record_are_an_admins_business_who_is_named(gateway: Start) -> None:
    async with gateway(keys=[key("ops", scopes=["admin"]), key("acme")]) as talk:
        with capture_logs() as lines:
            await check_callers(talk)
    assert [line for line in lines if line["event"] == "setting changed"] == [
        {
            "event": "setting changed",
            "log_level": "info",
            "actor": "ops",
            "address": "127.0.0.1",
            "target": "queue paid_stream",
            "changed": {"weight": {"before": 8, "after": 3}},
        }
    ]


async def check_callers(talk: Talk) -> None:
    for caller, status in ((None, 401), (secret("acme"), 403), (secret("ops"), 200)):
        async with talk.client(caller) as http:
            answer = await http.patch("/api/admin/queues/paid_stream", json={"weight": 3})
            assert answer.status_code == status
            assert (await http.patch("/api/admin/models/m", json={})).status_code == status
            record = await http.get("/api/admin/audit")
            assert record.status_code == status
    [entry] = record.json()["entries"]
    assert entry["actor"] == "ops"
