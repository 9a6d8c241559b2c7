"""`fairlane quota …` beside a running gateway."""

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.admin.test_commands import fairlane
from tests.integration.native.keys import key, secret
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import KeyQuota, PriceSettings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ENVIRON = {"FAIRLANE_ADMIN_KEY": secret("ops")}


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    keys = [
        key("ops", admin=True),
        key("app", tier="paid", quota=KeyQuota(otherwise="free")),
        key(
            "site", delegating=True, quota=KeyQuota.model_validate({"of": "user", "budget": 2, "per": "day"})
        ),
        key("plain"),
    ]
    prices = [PriceSettings.model_validate({"model": "*", "input": 1, "output": 1})]
    async with talking(redis_url, tmp_path, keys=keys, prices=prices) as talk:
        yield talk


async def run(talk: Talk, *arguments: str, problem: str = "") -> str:
    done = await fairlane(talk, "quota", *arguments, **ENVIRON)
    assert (done.returncode, problem in done.stderr) == (2 if problem else 0, True), done.stderr
    return done.stdout + done.stderr


async def test_credits_are_granted_and_shown_in_a_shell(talk: Talk) -> None:
    assert "nobody was granted anything or has paid" in await run(talk, "show")
    done = await run(talk, "grant", "app", "50.5", "--id", "invoice-17", "--note", "paid")
    assert done == "app: 50.5 credits granted (invoice-17), the balance is 50.5\n"
    again = await run(talk, "grant", "app", "50.5", "--id", "invoice-17")
    assert "granted before: nothing more was granted (invoice-17), the balance is 50.5" in again
    assert "app: 0.5 credits taken back (back)" in await run(talk, "grant", "app", "-0.5", "--id", "back")
    assert "site/ann: 2 credits granted (grant-" in await run(talk, "grant", "site/ann", "2")
    assert "site: 1 credits granted" in await run(talk, "grant", "site", "1", "--user")
    assert re.search(r"^site \(no user named\) +3 ", await run(talk, "show"), re.MULTILINE)
    assert "site (no user named)" in await run(talk, "ledger", "site", "--user")
    assert "fairlane: The key plain has no quota" in await run(talk, "grant", "plain", "1")
    shown = await run(talk, "show")
    assert re.search(r"^app +50 +50 +50 +0 +0 +- +- +- +- +free *$", shown, re.MULTILINE), shown
    assert re.search(r"^plain \(pays nothing\) +1 +1 +1 ", shown, re.MULTILINE), shown
    assert re.search(
        r"^site/ann +4 +2 +2 +0 +0 +2 +0 +day +20\d\d-\d\d-\d\d 00:00Z +- *$", shown, re.MULTILINE
    ), shown
    assert json.loads(await run(talk, "show", "site/ann", "--json"))["rows"][0]["available"] == 4


async def test_the_ledger_is_told_in_a_shell(talk: Talk) -> None:
    for grant in (
        {"key": "app", "credits": "50.5", "id": "invoice-17", "note": "paid"},
        {"key": "app", "credits": "-0.5", "id": "back"},
    ):
        granted = await talk.http.post(
            "/api/admin/quota/grants", json=grant, headers={"Authorization": f"Bearer {secret('ops')}"}
        )
        assert granted.status_code == 201, granted.text
    ledger = await run(talk, "ledger", "app")
    assert re.search(r"app +grant back +granted +-0.5 +0 +0 +by ops *$", ledger, re.MULTILINE), ledger
    assert re.search(r"app +grant invoice-17 +granted +50.5 +0 +0 +by ops paid *$", ledger, re.MULTILINE), (
        ledger
    )
    first, more = (await run(talk, "ledger", "--limit", "1")).splitlines()[1:]
    behind = re.fullmatch(r"there are more: --after (\S+)", more)
    assert behind
    assert first not in await run(talk, "ledger", "--after", behind[1])
    rows = list(csv.DictReader(io.StringIO(await run(talk, "ledger", "app", "--csv"))))
    assert [row["amount"] for row in rows] == ["-0.5", "50.5"]
    assert "there are no such rows" in await run(talk, "ledger", "app", "--kind", "task")


async def test_a_mistake_is_one_sentence(talk: Talk) -> None:
    await run(talk, "grant", "nosuch", "1", problem="fairlane: There is no key 'nosuch'\n")
    await run(talk, "grant", "app", "1.2.3", problem="credits should be a number of credits, such as 12.5")
    await run(talk, "grant", "app", "0", problem="credits must not be 0")
    await run(talk, "grant", "app", "1", "--notes", "x", problem="Got unexpected extra argument")
    await run(talk, "grant", "app", "-1", "--id", "a")
    other = "There is another grant of this id: -1 credits for app"
    await run(talk, "grant", "site/ann", "1", "--id", "a", problem=other)
    await run(talk, "show", "nosuch", problem="There is no key 'nosuch'")
    await run(talk, "ledger", "--kind", "hold", problem="kind")


async def test_a_grant_of_which_nothing_is_heard_can_be_repeated(talk: Talk) -> None:
    """The answer is lost: the command says how to be sure."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await fairlane(
            talk, "quota", "grant", "app", "1", "--gateway", f"http://127.0.0.1:{port}", **ENVIRON
        )
    assert done.returncode == 2
    assert re.search(
        r"if it is not known whether it was done, repeat it with --id grant-[0-9a-f]{16}: it grants once",
        done.stderr,
    )
