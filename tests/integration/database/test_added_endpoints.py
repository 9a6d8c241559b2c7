"""Endpoints that are added while gateways run, on each kind of database: one change after the other, heard of by all."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fairlane.gateway.database.database import Database
from fairlane.gateway.endpoints.store import EndpointMonitor, EndpointStore, StoredEndpoint, StoredEndpoints

pytestmark = pytest.mark.anyio
SAID = {"url": "https://a.example/*", "set_headers": {"authorization": "secret"}}


def made(name: str, at_ms: int, values: Mapping[str, Any] = SAID, note: str = "") -> StoredEndpoint:
    return StoredEndpoint(name, values, note, at_ms, at_ms, "ops")


async def test_changes_are_whole_and_move_the_version(database: Database) -> None:
    store = EndpointStore(database)
    before = await store.all()
    assert (before.version, dict(before.endpoints)) == ("0 0", {})
    async with store.changing() as (known, at_ms):
        known["a"] = made("a", at_ms, note="note")
    added = await store.all()
    one = added.endpoints["a"]
    assert (one.values, one.note, one.who) == (SAID, "note", "ops")
    assert one.settings is not None
    assert one.settings.url == "https://a.example/*"
    assert "secret" not in repr(one)
    assert added.version.startswith("1 ")
    assert added.changed_ms == one.created_ms == one.changed_ms

    async def fail() -> None:
        async with store.changing() as (known, _):
            del known["a"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await store.all()).version == added.version
    async with store.changing() as (known, at_ms):
        known["a"] = replace(known["a"], values={**SAID, "concurrency": 2}, changed_ms=at_ms)
    changed = (await store.all()).endpoints["a"]
    assert changed.created_ms == one.created_ms
    assert changed.changed_ms > one.changed_ms
    async with store.changing() as (known, _):
        del known["a"]
    assert not (await store.all()).endpoints


async def test_changes_at_the_same_time_come_one_after_the_other(database: Database) -> None:
    store = EndpointStore(database)

    async def add(number: int) -> None:
        async with store.changing() as (known, at_ms):
            name = f"e{number}"
            known[name] = made(name, at_ms, {"url": f"https://{len(known)}.example/*"})

    await asyncio.gather(*(add(number) for number in range(8)))
    found = await store.all()
    assert len({one.values["url"] for one in found.endpoints.values()}) == 8, "each has seen those before"
    assert found.version.startswith("8 ")


async def test_a_change_is_taken_over_once(database: Database) -> None:
    heard: asyncio.Queue[StoredEndpoints] = asyncio.Queue()
    store = EndpointStore(database)
    watch = EndpointMonitor(store, heard.put)
    await watch.start()
    try:
        assert not (await heard.get()).endpoints
        async with store.changing() as (stored, at_ms):
            stored["a"] = made("a", at_ms)
        async with asyncio.timeout(15):
            known = await heard.get()
        assert set(known.endpoints) == {"a"}
        assert (await watch.read()).version == known.version
        assert heard.empty()
    finally:
        await watch.close()


async def test_what_broke_off_while_it_was_taken_over_is_taken_again(database: Database) -> None:
    heard: list[set[str]] = []

    async def take(known: StoredEndpoints) -> None:
        heard.append(set(known.endpoints))
        if heard == [set(), {"a"}]:
            raise asyncio.CancelledError  # as when an operator hangs up meanwhile

    store = EndpointStore(database)
    watch = EndpointMonitor(store, take)
    await watch.read()
    async with store.changing() as (stored, at_ms):
        stored["a"] = made("a", at_ms)
    with pytest.raises(asyncio.CancelledError):
        await watch.read()
    known = await watch.read()
    assert heard == [set(), {"a"}, {"a"}]
    assert watch.known is known
    await watch.read()
    assert len(heard) == 3
