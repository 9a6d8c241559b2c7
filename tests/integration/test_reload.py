"""SIGHUP reads keys and limits again, in one process and in several, and never opens a gateway by mistake."""

import asyncio
import hashlib
import signal
from pathlib import Path

import pytest
from tests.support.processes import gateway_process
from tests.support.serving import DEADLINE_S, http_client, until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def config(*names: str) -> str:
    keys = [f'  - {{id: {name}, sha256: "{hashlib.sha256(name.encode()).hexdigest()}"}}' for name in names]
    return "keys:\n" + "\n".join(keys) + "\n" if keys else ""


@pytest.mark.parametrize("processes", [1, 2])
async def test_keys_are_read_again_by_every_process(redis_url: str, tmp_path: Path, processes: int) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(config("old"))
    async with gateway_process(tmp_path, redis_url, processes=processes) as gateway:

        async def status(key: str) -> set[int]:
            """What several connections are answered: they may reach different processes."""
            answers = set()
            for _ in range(8):
                async with http_client(gateway.url) as client:
                    headers = {"Authorization": f"Bearer {key}"}
                    answers.add((await client.get("/v1/models", headers=headers)).status_code)
            return answers

        async def taken_over() -> bool:
            return await status("new") == {200} and await status("old") == {401}

        assert await status("old") == {200}
        assert gateway.log.count("fairlane: new worker token, shown this once: flw_first_") == 1
        file.write_text(config("new"))
        gateway.signal(signal.SIGHUP)
        await until(taken_over, "the new keys")

        file.write_text("")  # cut short by an editor, or forgotten: must not open the gateway
        gateway.signal(signal.SIGHUP)
        await until(lambda: "would open the gateway" in gateway.log, "the refusal")
        assert await status("new") == {200}
        assert await status("nobody") == {401}
        assert gateway.log.count("shown this once") == 1


async def test_keys_that_come_to_an_open_gateway_close_it_to_workers_without_a_token(
    redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text("")
    async with gateway_process(tmp_path, redis_url) as gateway, connect(gateway.ws, proxy=None) as worker:
        assert "no keys are configured: every program on this machine" in gateway.log
        file.write_text(config("new"))
        gateway.signal(signal.SIGHUP)
        await until(lambda: "new worker token, shown this once: flw_first_" in gateway.log, "the token")
        token = gateway.log.partition("shown this once: ")[2].split()[0]
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(DEADLINE_S):
                await worker.recv()
        with pytest.raises(InvalidStatus):
            async with connect(gateway.ws, proxy=None):
                pass
        async with connect(
            gateway.ws, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None
        ) as known:
            await known.ping()
