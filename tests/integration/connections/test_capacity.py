"""How many connections there may be."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.support.processes import GatewayProcess
from tests.support.rawhttp import HEALTH, Caller
from tests.support.serving import until
from tests.support.talk import talking

from fairlane.queues.metrics import CONNECTIONS_REJECTED

pytestmark = pytest.mark.anyio


class FewFiles(GatewayProcess):
    """A gateway that may open few files."""

    files = 256


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_more_connections_than_files_is_an_error_that_says_what_to_do(
    redis_url: str, tmp_path: Path
) -> None:
    gateway = FewFiles(tmp_path, redis_url, max_connections=1000)
    gateway.launch()
    assert await gateway.ended() == 1
    assert "ulimit -n" in gateway.log
    assert "max_connections is 1000" in gateway.log
    assert "Traceback" not in gateway.log


async def test_connections_of_one_address_have_a_limit_if_it_is_set(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        talking(redis_url, tmp_path, max_connections_per_address=5) as talk,
        talk.worker(),
        talk.worker(),
        contextlib.AsyncExitStack() as stack,
    ):

        def ask() -> list[bytes]:
            clients = [stack.enter_context(Caller(talk.served.url)) for _ in range(5)]
            assert [client.ask(HEALTH)[0] for client in clients] == [200] * 5
            one_more = stack.enter_context(Caller(talk.served.url))
            return [clients[0].ask(HEALTH)[1], one_more.rest()]

        kept, rejected = await asyncio.to_thread(ask)
        assert b" 200 " in kept
        assert rejected.startswith(b"HTTP/1.1 503 ")
        await stack.aclose()
        await until(lambda: len(talk.served.gateway.connections.open) == 2, "the clients to be gone")
        with Caller(talk.served.url) as client:
            assert (await asyncio.to_thread(client.ask, HEALTH))[0] == 200


async def test_connections_beyond_the_limit_are_rejected_until_others_close(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talking(redis_url, tmp_path, max_connections=4) as talk, talk.worker():

        def fill() -> None:
            with contextlib.ExitStack() as stack:
                for _ in range(3):
                    assert stack.enter_context(Caller(talk.served.url)).ask(HEALTH)[0] == 200
                for _ in range(5):
                    with Caller(talk.served.url) as late:
                        assert late.rest().startswith(b"HTTP/1.1 503 ")

        await asyncio.to_thread(fill)
        await until(lambda: len(talk.served.gateway.connections.open) == 1, "the clients to be gone")
        with Caller(talk.served.url) as caller:
            assert (await asyncio.to_thread(caller.ask, HEALTH))[0] == 200
        assert talk.served.gateway.metrics.values[CONNECTIONS_REJECTED.name] == {(): 5}
        assert capsys.readouterr().out.count("too many connections") == 1
