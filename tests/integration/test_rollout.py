"""Replicas with different files: what the newest says of queues and models holds, and it shows which replica has another."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.contract.store.store import World
from tests.support.processes import GatewayProcess, gateway_process
from tests.support.servers import Server
from tests.support.serving import http_client, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BEFORE = "another replica has a newer configuration"


def write(folder: Path, weight: int, modified_s: int) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / "fairlane.yaml"
    file.write_text(f"queues:\n  free_batch: {{weight: {weight}}}\n")
    os.utime(file, (modified_s, modified_s))


async def state(gateway: GatewayProcess) -> dict[str, Any]:
    answer: dict[str, Any] = {}

    async def told() -> bool:
        response = await client.get("/api/admin/overview")
        if response.status_code == 200:  # (503 while it connects to Redis again)
            answer.update(response.json())
        return response.status_code == 200

    async with http_client(gateway.url) as client:
        await until(told, "the state")
    return answer


async def weight(gateway: GatewayProcess) -> float:
    (found,) = (row["weight"] for row in (await state(gateway))["queues"] if row["queue"] == "free_batch")
    return float(found)


async def test_a_replica_of_before_the_rollout_changes_nothing_when_it_connects_again(
    redis_url: str, redis_server: Server, tmp_path: Path
) -> None:
    old_folder, new_folder = tmp_path / "old", tmp_path / "new"
    write(old_folder, 2, 1_700_000_000)
    write(new_folder, 9, 1_700_000_100)
    async with gateway_process(old_folder, redis_url) as old:
        assert await weight(old) == 2
        async with gateway_process(new_folder, redis_url) as new:
            assert await weight(old) == 9
            for times in (1, 2):  # Redis is gone for a moment
                connections = old.log.count("connected to Redis")
                world = World(redis_server.socket_path, real_clock=True)
                world.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                world.close()
                await until(
                    lambda seen=connections: old.log.count("connected to Redis") > seen, f"time {times}"
                )  # type: ignore[misc]
            assert await weight(new) == 9
            assert old.log.count(BEFORE) == 1, "said once"
            assert BEFORE not in new.log
            rows = [row["configuration"] for row in (await state(new))["replicas"]]
            assert sorted((row["effective"], row["modifiedAt"]) for row in rows) == [
                (False, 1_700_000_000_000),
                (True, 1_700_000_100_000),
            ]

            write(old_folder, 3, 1_700_000_200)
            old.signal(signal.SIGHUP)

            async def taken_over() -> bool:
                return await weight(new) == 3

            await until(taken_over, "the newest file")


async def test_a_rollout_is_rolled_back_when_its_replicas_are_gone(redis_url: str, tmp_path: Path) -> None:
    write(tmp_path / "old", 2, 1_700_000_000)
    write(tmp_path / "new", 9, 1_700_000_100)
    async with gateway_process(tmp_path / "old", redis_url) as old:
        async with gateway_process(tmp_path / "new", redis_url):
            assert await weight(old) == 9

        async def back() -> bool:
            return await weight(old) == 2

        await until(back, "its own configuration", 40)
