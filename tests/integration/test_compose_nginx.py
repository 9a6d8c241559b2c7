"""nginx as deploy/compose has it, before two gateways."""

import asyncio
from pathlib import Path

import pytest
from tests.support.nginx import NGINX, before_gateways, nginx
from tests.support.rawworkers import worker_v2
from tests.support.servers import free_port
from tests.support.serving import WORKER_TOKEN, http_client, until
from tests.support.talk import talking

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(NGINX is None, reason="no nginx on this machine")]


async def test_a_worker_comes_to_the_gateway_that_stays_and_no_token_gets_into_the_log(
    redis_url: str, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        talking(redis_url, tmp_path / "a", drain_ms=30_000) as a,
        talking(redis_url, tmp_path / "b") as b,
        nginx(tmp_path, before_gateways(tmp_path, port, [talk.served.url[7:] for talk in (a, b)])),
        http_client(f"http://127.0.0.1:{port}") as http,
    ):
        await until(lambda: answers(port), "nginx to listen")
        draining = a.later(a.served.gateway.drain())
        await until(lambda: a.served.gateway.dispatcher.pool.draining, "the drain to begin")
        for number in range(4):  # nginx takes turns
            async with worker_v2(f"ws://127.0.0.1:{port}/ws", "m", token=WORKER_TOKEN, instance=f"w{number}"):
                await b.workers(1)
            await b.workers(0)
        await http.get("/api/sse-stream?taskId=x&token=SECRET", headers={"referer": "http://x/?token=SECRET"})
        await draining
        lines = (tmp_path / "access.log").read_text()
    assert '"GET /api/sse-stream" ' in lines
    assert "SECRET" not in lines + (tmp_path / "error.log").read_text()


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
