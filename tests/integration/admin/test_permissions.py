"""Which permissions a gateway needs in Redis: those of docs/production.md are enough, and what is missing is named."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.servers import Server, any_binary, running_server
from tests.support.serving import until
from tests.support.talk import talking

from fairlane.gateway.runtime import open_gateway
from fairlane.gateway.settings import Settings
from fairlane.queues.errors import StoreRefused

pytestmark = pytest.mark.anyio
DOCUMENT = Path(__file__).parents[3] / "docs" / "production.md"


@pytest.fixture
def server() -> Iterator[Server]:
    """One whose user `fairlane` has what the document lists."""
    listed = re.search(r"^user fairlane (on .*)$", DOCUMENT.read_text(), re.MULTILINE)
    assert listed
    with running_server(any_binary()) as server:
        may(server, "reset", *listed[1].split())
        yield server


def may(server: Server, *rules: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "fairlane", *rules)


def as_fairlane(server: Server) -> str:
    return f"unix://fairlane:secret@{server.socket_path}"


async def test_the_permissions_of_the_document_are_enough(server: Server, tmp_path: Path) -> None:
    async with talking(as_fairlane(server), tmp_path) as talk, talk.worker2(["m"]) as worker:
        first, second = await talk.submit(model="m"), await talk.submit(model="m")
        await worker.answer(await worker.take())
        await talk.reaches(first, "completed")
        await talk.http.post(f"/api/task/{second}/cancel")
        await talk.reaches(second, "cancelled")
        changed = await talk.http.patch("/api/admin/models/m", json={"concurrency": 2})
        assert changed.status_code == 200
        for page in ("overview", "timeseries", "tasks", f"tasks/{first}", "audit", "settings"):
            assert (await talk.http.get(f"/api/admin/{page}")).status_code == 200
    with server.client() as client:
        assert client.execute_command("ACL", "LOG") == []


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (["-fcall"], "fcall"),
        (["-function|list"], "function|list"),
        (["-function|load"], "function|load"),
        (["-zunionstore", "-xadd"], "XADD, ZUNIONSTORE"),
        (["-xgroup|create"], "XGROUP CREATE"),
        (["-info"], "INFO"),
        (["resetchannels"], "SPUBLISH, SSUBSCRIBE"),
        (["resetkeys", "~other:*"], "begin with fairlane:"),
        (["resetkeys", "%R~fairlane:*"], "begin with fairlane:"),
        ([">other", "<secret"], "the user or the password of redis_url"),
    ],
)
async def test_a_gateway_that_lacks_one_does_not_start_and_names_it(
    server: Server, tmp_path: Path, rules: list[str], named: str
) -> None:
    may(server, *rules)
    settings = Settings(data_dir=tmp_path)
    with pytest.raises(StoreRefused, match=re.escape(named)):
        async with open_gateway(settings, [as_fairlane(server)]):
            pass


@pytest.mark.parametrize("rule", ["-fcall", "-zadd"])
async def test_one_that_is_taken_away_is_named_until_it_is_back(
    server: Server, tmp_path: Path, rule: str
) -> None:
    async with talking(as_fairlane(server), tmp_path) as talk:
        may(server, rule)
        await until(lambda: not talk.served.gateway.link.up)
        ready = await talk.http.get("/readyz")
        assert ready.status_code == 503
        assert "lacks permissions" in ready.json()["missing"][0]
        refused = await talk.http.post("/api/openai", json={"model": "m", "async": True})
        assert (refused.status_code, refused.json()["code"]) == (503, "STORE_UNAVAILABLE")
        may(server, "+" + rule[1:])
        await until(lambda: talk.served.gateway.link.up)
