"""The shared connection under faults: each call gets its own answer, an honest error, or none of either twice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from msgspec import msgpack
from redis.exceptions import ResponseError
from tests.contract.store.store import sample_ends
from tests.support.ids import id_of
from tests.support.proxy import ChaosProxy
from tests.support.servers import Server, redis_binary, running_server, valkey_binary

from fairlane.queues.errors import StoreRefused, StoreUnavailable
from fairlane.queues.keys import Keys, pool_prefix
from fairlane.queues.scheduler import MAX_TAKEN, Limits, Scheduler
from fairlane.queues.store.address import Address
from fairlane.queues.store.channel import Channel
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.scripts import load_scripts
from fairlane.queues.store.wire import connect
from fairlane.queues.tasks import Append, End, Grant, Rejection, State, Submitted, TaskSpec, Used

DEADLINE_S = 10.0
NOBODY = msgpack.encode({"id": "nobody"})
UNKNOWN = [msgpack.encode({"known": False})]


@asynccontextmanager
async def linked(url: str, **options: Any) -> AsyncIterator[RedisLink]:
    link = RedisLink(Address(url), load_scripts(), pool_prefix(), **options)
    await link.start()
    try:
        yield link
    finally:
        await link.close()


def scheduler_of(link: RedisLink) -> Scheduler:
    return Scheduler(link, Keys(pool_prefix()), "r1", sample_ends(), Limits())


async def until_up(link: RedisLink) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not link.up:
            await asyncio.sleep(0.005)


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, DEADLINE_S)


def loses(word: bytes) -> Any:
    """Lose the reply to the first piece sent from now on that holds `word`."""
    left = [True]

    def lose(data: bytes) -> bool:
        if left and word in data:
            left.clear()
            return True
        return False

    return lose


def run(test: Any, *args: Any) -> None:
    asyncio.run(asyncio.wait_for(test(*args), 60))


def test_calls_of_one_tick_leave_in_one_write(redis_url: str) -> None:
    async def main() -> None:
        async with linked(redis_url) as link:
            writes = link.writes
            replies = await asyncio.gather(*[link.command("ECHO", str(n)) for n in range(100)])
            assert replies == [str(n).encode() for n in range(100)]
            assert link.writes == writes + 1

    run(main)


def test_calls_of_a_script_in_one_tick_share_a_command_and_fail_alone(redis_url: str) -> None:
    async def main() -> None:
        async with linked(redis_url) as link:
            scheduler = scheduler_of(link)
            await scheduler.configure({"free_batch": {"weight": 1}}, {"m": {"concurrency": 4}})
            await scheduler.offer(["m"], [], 15_000, 0)

            async def count() -> int:
                stats = await link.command("INFO", "commandstats")
                return int(stats.partition(b"cmdstat_fcall:calls=")[2].partition(b",")[0])

            before = await count()
            tasks = [TaskSpec(name, "m", "free_batch", "u", b"{}") for name in "abcdefgh"]
            replies = [scheduler.submit(task, 1, scheduler.nonce(), named=True) for task in tasks]
            replies.append(link.run_with_others("submit", msgpack.encode({"id": 1, "want": 0}), b"", b"{}"))
            replies[1].cancel()
            *answers, broken = await asyncio.gather(*replies, return_exceptions=True)
            assert isinstance(broken, ResponseError)
            assert await count() == before + 2, "one command for all, and another for the one that fails"
            states = [
                scheduler.parse_submit(one).state for one in answers if not isinstance(one, BaseException)
            ]
            assert states == [State.EXECUTING] * 3 + [State.QUEUED] * 4

            unknown, known = (TaskSpec("x", model, "free_batch", "u", b"{}") for model in ("nowhere", "m"))
            rejected, accepted = await asyncio.gather(
                *[scheduler.submit(task, 0, scheduler.nonce()) for task in (unknown, known)]
            )
            assert isinstance(scheduler.parse_submit(rejected), Rejection)
            assert scheduler.parse_submit(accepted).state is State.QUEUED, "the rejected one has left nothing"

            before = await count()
            more = [TaskSpec(name, "m", "free_batch", "u", b"{}") for name in "stuvw"]
            await asyncio.gather(*[scheduler.submit(task, 0, scheduler.nonce()) for task in more])
            assert await count() == before + 1
            places = [(await scheduler.position(name)).place.position for name in "efghxstuvw"]
            assert places == list(range(1, 11)), "in the order in which they came"

    run(main)


def test_calls_that_share_a_command_share_the_limit_of_grants(redis_url: str) -> None:
    async def main() -> None:
        async with linked(redis_url) as link:
            scheduler = scheduler_of(link)
            await scheduler.configure({"free_batch": {"weight": 1}}, {"m": {"concurrency": 1000}})
            await scheduler.offer(["m"], [], 15_000, 0)
            tasks = [TaskSpec(f"t{n}", "m", "free_batch", "u", b"{}") for n in range(2 + MAX_TAKEN + 10)]
            await asyncio.gather(*[scheduler.submit(task, 0, scheduler.nonce()) for task in tasks])
            running = scheduler.parse_take(await scheduler.take(["m"], 2, scheduler.nonce())).grants
            most = MAX_TAKEN - 10

            def finish(grant: Grant) -> asyncio.Future[Any]:
                terminal = ("done", b"{}")
                end = End(State.COMPLETED, "", terminal, Used(1, 1), scheduler.nonce(), most, ["m"])
                return scheduler.finish(grant, 2, (), end)

            replies = await asyncio.gather(*map(finish, running))
            granted = [len(scheduler.parse_finish(reply).grants) for reply in replies]
            assert granted == [most, 10]
            assert not await link.command("ZCARD", Keys(pool_prefix())("idle", model="m")), (
                "woken for the rest"
            )

    run(main)


def test_a_cancelled_caller_does_not_shift_replies(redis_url: str, redis_server: Server) -> None:
    async def main() -> None:
        async with ChaosProxy(redis_server.socket_path) as proxy, linked(proxy.url) as link:
            proxy.faults.latency_s = 0.02

            async def ask(n: int) -> Any:
                return await link.command("ECHO", str(n))

            for batch in range(20):
                tasks = [asyncio.create_task(ask(n)) for n in range(20)]
                await asyncio.sleep(0 if batch % 2 else 0.03)
                for task in tasks[batch % 3 :: 3]:
                    task.cancel()
                answers = await asyncio.gather(*tasks, return_exceptions=True)
                for n, answer in enumerate(answers):
                    assert isinstance(answer, asyncio.CancelledError) or answer == str(n).encode()

    run(main)


def test_a_lost_reply_is_reported_as_sent_and_a_repetition_has_no_second_effect(
    redis_url: str, redis_server: Server
) -> None:
    async def main(proxy: ChaosProxy) -> None:
        async with linked(proxy.url) as link:
            scheduler = scheduler_of(link)
            await scheduler.configure({"free_batch": {"weight": 1}}, {"m": {"concurrency": 1}})
            await scheduler.offer(["m"], [], 15_000, 0)
            task, nonce = TaskSpec("a", "m", "free_batch", "u", b"{}"), scheduler.nonce()

            proxy.faults.lose_reply = loses(b"free_batch")
            with pytest.raises(StoreUnavailable) as lost:
                await scheduler.submit(task, 1, nonce)
            assert lost.value.sent
            await until_up(link)
            submitted = scheduler.parse_submit(await scheduler.submit(task, 1, nonce))
            assert isinstance(submitted, Submitted)
            grant = submitted.grants[0]
            assert (submitted.state, grant.attempt) == (State.EXECUTING, 1)

            proxy.faults.lose_reply = loses(b"hello")
            append = [Append(grant, 2, [("chunk", b"hello")], output=True)]
            with pytest.raises(StoreUnavailable):
                await scheduler.append(append)
            await until_up(link)
            assert scheduler.parse_append(await scheduler.append(append))[0].outcome == "open"

            await scheduler.submit(TaskSpec("b", "m", "free_batch", "u", b"{}"), 0, scheduler.nonce())
            proxy.faults.lose_reply = loses(b"the end")
            nonce = scheduler.nonce()

            def finish() -> Awaitable[Any]:
                return scheduler.finish(
                    grant, 3, [], End(State.COMPLETED, "", ("done", b"the end"), Used(1, 1), nonce, 1, ["m"])
                )

            with pytest.raises(StoreUnavailable):
                await finish()
            await until_up(link)
            first, second = scheduler.parse_finish(await finish()), scheduler.parse_finish(await finish())
            assert first == second
            assert (first.outcome, first.event_id) == ("ok", id_of(grant, 3))
            assert [grant.task_id for grant in first.grants] == ["b"]
            log = await scheduler.page("a", "-", 1 << 30)
            assert [(entry.seq, entry.kind) for entry in log] == [(1, "start"), (2, "chunk"), (3, "done")]
            assert proxy.lost_replies == 3

    async def with_proxy() -> None:
        async with ChaosProxy(redis_server.socket_path) as proxy:
            await main(proxy)

    run(with_proxy)


def test_flushed_scripts_are_sent_again_unseen(redis_url: str) -> None:
    async def main() -> None:
        async with linked(redis_url) as link:
            scheduler = scheduler_of(link)
            await scheduler.offer(["m"], [], 15_000, 0)
            for n in range(50):
                await link.command("FUNCTION", "FLUSH")
                task = TaskSpec(f"t{n}", "m", "q", "u", b"{}")
                submit = scheduler.submit(task, 0, scheduler.nonce())
                renew = scheduler.renew([])
                assert isinstance(scheduler.parse_submit(await submit), Submitted)
                assert await renew == []

    run(main)


def test_the_library_of_another_release_is_removed_and_comes_back_when_that_one_needs_it(
    redis_url: str,
) -> None:
    async def main() -> None:
        other = load_scripts(test_clock=True)
        async with linked(redis_url) as link:
            await link.command("FUNCTION", "LOAD", other.text)
            await link.command("SET", Keys(pool_prefix())("clock"), 1)
        async with linked(redis_url) as link:
            names = [library[1].decode() for library in await link.command("FUNCTION", "LIST")]
            assert names == [load_scripts().name]
            older = RedisLink(Address(redis_url), other, pool_prefix())
            await older.start()
            try:
                for _ in range(3):  # each finds its own, whoever connected last
                    assert await link.run("read", NOBODY) == UNKNOWN
                    assert await older.run("read", NOBODY) == UNKNOWN
            finally:
                await older.close()

    run(main)


def test_a_library_that_cannot_be_loaded_again_is_reported_as_an_unavailable_store(
    redis_server: Server,
) -> None:
    async def main(server: Server) -> None:
        async with linked(server.url) as link:
            await link.command("FUNCTION", "FLUSH")
            await link.command("CONFIG", "SET", "maxmemory", 1)
            for reply in await asyncio.gather(
                *[link.run("read", NOBODY) for _ in range(100)], return_exceptions=True
            ):
                assert isinstance(reply, StoreUnavailable)
            assert not link.up
            assert "maxmemory" in link.setup_error
            with server.client() as operator:
                operator.config_set("maxmemory", 0)
            await until_up(link)
            assert isinstance(await link.run("read", NOBODY), list)

    with running_server(redis_server.binary) as server:
        run(main, server)


@pytest.mark.parametrize("forbidden", ["function", "fcall"])
def test_a_redis_user_without_functions_ends_the_start(redis_server: Server, forbidden: str) -> None:
    async def main(server: Server) -> None:
        with server.client() as operator:
            operator.execute_command("ACL", "SETUSER", "default", f"-{forbidden}")

        async def configure(link: RedisLink) -> None:
            await link.run("read", NOBODY)

        with pytest.raises(StoreRefused, match=rf"lacks permissions in Redis: .*'{forbidden}"):
            await RedisLink(Address(server.url), load_scripts(), pool_prefix(), on_connect=configure).start()

    with running_server(redis_server.binary) as server:
        run(main, server)


def test_a_server_without_functions_ends_the_start(redis_server: Server) -> None:
    async def main(server: Server) -> None:
        with pytest.raises(StoreRefused, match=r"use Redis 7\.0"):
            await RedisLink(Address(server.url), load_scripts(), pool_prefix()).start()

    with running_server(redis_server.binary, "--rename-command", "FUNCTION", "") as server:
        run(main, server)


def test_a_script_runs_although_its_caller_left_and_the_server_had_forgotten_it(redis_url: str) -> None:
    async def main() -> None:
        async with linked(redis_url) as link:
            scheduler = scheduler_of(link)
            await link.command("FUNCTION", "FLUSH")
            scheduler.offer(["m"], [], 15_000, 0).cancel()
            async with asyncio.timeout(DEADLINE_S):
                while not await link.command("EXISTS", Keys(pool_prefix())("offered")):
                    await asyncio.sleep(0.005)

    run(main)


def test_a_restarted_server_is_found_again(redis_server: Server) -> None:
    async def main(server: Server) -> None:
        changes: list[bool] = []
        async with linked(server.url, on_change=changes.append) as link:
            pending = link.command("BLPOP", "nothing", 0)
            server.stop()
            with pytest.raises(StoreUnavailable) as lost:
                await soon(pending)
            assert lost.value.sent
            with pytest.raises(StoreUnavailable) as down:
                link.command("PING")
            assert not down.value.sent
            server.start()
            await until_up(link)
            assert await link.command("PING") == b"PONG"
            assert isinstance(await link.run("read", NOBODY), list)
        assert changes == [True, False, True, False]

    with running_server(redis_server.binary) as server:
        run(main, server)


def test_commands_of_the_moment_in_which_the_connection_is_lost_fail_and_log_nothing(
    redis_server: Server,
) -> None:
    async def main(server: Server) -> None:
        strange: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: strange.append(context))
        async with linked(server.url) as link:
            for _ in range(5):
                await until_up(link)
                server.stop()
                calls = []
                while link.up:
                    calls.append(link.command("PING"))
                    await asyncio.sleep(0)
                replies = await soon(asyncio.gather(*calls, return_exceptions=True))
                assert {type(reply) for reply in replies} <= {bytes, StoreUnavailable}
                server.start()
        assert strange == []

    with running_server(redis_server.binary) as server:
        uvloop.run(asyncio.wait_for(main(server), 60))


def test_a_hung_server_fails_calls_within_the_time_out_and_is_used_again(redis_server: Server) -> None:
    async def main(server: Server) -> None:
        async with linked(server.url, timeout_ms=200) as link:
            server.freeze()
            calls = [link.command("INCR", "n") for _ in range(3)]
            for call in calls:
                with pytest.raises(StoreUnavailable) as hung:
                    await soon(call)
                assert hung.value.sent
            await asyncio.sleep(0.5)  # attempts to connect to a stopped server hang too, and are given up
            server.thaw()
            await until_up(link)
            assert int(await link.command("GET", "n") or 0) in (0, 3)

    with running_server(redis_server.binary) as server:
        run(main, server)


def test_replies_in_pieces_and_resets_reach_no_other_call(redis_url: str, redis_server: Server) -> None:
    async def main() -> None:
        async with ChaosProxy(redis_server.socket_path) as proxy, linked(proxy.url) as link:
            proxy.faults.slice_bytes = 3

            async def ask(n: int) -> Any:
                try:
                    return await link.command("ECHO", f"<{n}>" * 10)
                except StoreUnavailable:
                    return None

            for _ in range(10):
                await until_up(link)
                asked = [asyncio.create_task(ask(n)) for n in range(50)]
                await asyncio.sleep(0.001)
                proxy.reset()
                for n, answer in enumerate(await asyncio.gather(*asked)):
                    assert answer is None or answer == (f"<{n}>" * 10).encode()

    run(main)


def test_a_server_that_is_not_there_is_named_with_its_trouble() -> None:
    async def main() -> None:
        link = RedisLink(Address("unix:///nowhere/at/all"), load_scripts(), pool_prefix())
        with pytest.raises(StoreUnavailable, match="nowhere"):
            await link.start(wait_ms=200)

    run(main)


def test_a_rejected_server_ends_the_start_but_not_a_running_link(redis_server: Server) -> None:
    async def main(server: Server) -> None:
        refusing = True

        async def check(link: RedisLink) -> None:
            await link.command("PING")
            if refusing:
                raise StoreRefused("evicts keys: set maxmemory-policy to noeviction")

        with pytest.raises(StoreRefused, match="noeviction"):
            await RedisLink(Address(server.url), load_scripts(), pool_prefix(), on_connect=check).start()
        refusing = False
        async with linked(server.url, on_connect=check) as link:
            refusing = True
            await link.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            server.stop()
            server.start()
            await asyncio.sleep(0.3)
            assert not link.up
            refusing = False
            await until_up(link)

    with running_server(redis_server.binary) as server:
        run(main, server)


@pytest.mark.parametrize("binary", [path for path in (redis_binary(), valkey_binary()) if path])
def test_a_full_redis_rejects_whole_submits_and_lets_running_tasks_end(binary: str) -> None:
    async def main(server: Server) -> None:
        async with linked(server.url) as link:
            keys = Keys(pool_prefix())
            scheduler = scheduler_of(link)
            await scheduler.configure({"q": {"weight": 1, "max_length": 100_000}}, {"m": {"concurrency": 4}})
            await scheduler.offer(["m"], [], 15_000, 0)

            def spec(name: str) -> TaskSpec:
                return TaskSpec(name, "m", "q", "u", b"x" * 2000, keep_ms=60_000)

            running = [
                scheduler.parse_submit(await scheduler.submit(spec(f"run{n}"), 1, scheduler.nonce())).grants[
                    0
                ]  # type: ignore[union-attr]
                for n in range(4)
            ]
            for n in range(50):
                await scheduler.submit(spec(f"wait{n}"), 0, scheduler.nonce())
            used = int((await link.command("INFO", "memory")).split(b"used_memory:")[1].split(b"\r")[0])
            await link.command("CONFIG", "SET", "maxmemory", used - 100_000)

            before = await link.command("DBSIZE")
            pool = await link.command("HGETALL", keys("pool"))
            for want in (0, 1):
                with pytest.raises(StoreUnavailable) as full:
                    await scheduler.submit(spec("refused"), want, scheduler.nonce())
                assert not full.value.sent
            assert await link.command("DBSIZE") == before
            assert await link.command("HGETALL", keys("pool")) == pool

            first, second, third, fourth = running
            assert await scheduler.renew([(grant, "w", True, -1) for grant in running]) == [1, 1, 1, 1]
            await scheduler.sweep()
            await scheduler.offer(["m"], [], 15_000, 0)
            end = sample_ends().timeout
            cancelled = await scheduler.cancel(
                second.task_id, state=State.FAILED, kind="error", end=end, why="timeout"
            )
            assert cancelled.outcome == "ended"
            queued = await scheduler.cancel("wait7", state=State.FAILED, kind="error", end=end, why="timeout")
            assert queued.outcome == "ended"
            assert (await scheduler.requeue(third, "gone", cause="lost", begun=True)).outcome == "queued"
            for grant in (first, second, fourth):
                reply = await scheduler.finish(
                    grant,
                    2,
                    [("chunk", b"{}")],
                    End(State.COMPLETED, "", ("done", b"{}"), Used(1, 1), scheduler.nonce(), 0, []),
                )
                assert scheduler.parse_finish(reply).outcome == ("late" if grant is second else "ok")
            assert await link.command("ZCARD", keys("slots", model="m")) == 0
            assert len(scheduler.parse_take(await scheduler.take(["m"], 2, scheduler.nonce())).grants) == 2
            assert scheduler.parse_take(await scheduler.take(["m2"], 2, scheduler.nonce())).grants == []

    with running_server(binary, "--maxmemory-policy", "noeviction") as server:
        run(main, server)


def test_the_channel_tells_when_it_listens_and_finds_the_server_again(redis_server: Server) -> None:
    async def main(server: Server) -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        changes: list[bool] = []
        channel = Channel(Address(server.url), "c", heard.put_nowait, changes.append)
        await channel.start()
        async with linked(server.url) as link:
            await link.command("SPUBLISH", "c", "one")
            assert await soon(heard.get()) == b"one"
        server.stop()
        server.start()
        async with asyncio.timeout(DEADLINE_S):
            while changes != [True, False, True]:
                await asyncio.sleep(0.005)
        async with linked(server.url) as link:
            await link.command("SPUBLISH", "c", "two")
            assert await soon(heard.get()) == b"two"
        await channel.close()
        assert changes == [True, False, True, False]

    with running_server(redis_server.binary) as server:
        run(main, server)


def test_the_channel_gives_up_a_silent_connection(redis_url: str, redis_server: Server) -> None:
    async def main() -> None:
        async with ChaosProxy(redis_server.socket_path) as proxy:
            heard: asyncio.Queue[bytes] = asyncio.Queue()
            lost = asyncio.Event()
            channel = Channel(
                Address(proxy.url),
                "c",
                heard.put_nowait,
                lambda up: None if up else lost.set(),
                timeout_ms=200,
                ping_ms=100,
            )
            await channel.start()
            await asyncio.sleep(0.35)
            assert not lost.is_set(), "an idle channel is asked and answers"
            proxy.faults.blackhole = True
            await soon(lost.wait())
            proxy.faults.blackhole = False
            await soon(channel.listening.wait())
            async with linked(redis_url) as link:
                await link.command("SPUBLISH", "c", "again")
            assert await soon(heard.get()) == b"again"
            await channel.close()

    run(main)


def test_a_server_that_accepts_and_does_not_greet_is_named_as_such(redis_server: Server) -> None:
    async def main(server: Server) -> None:
        with server.frozen(), pytest.raises(TimeoutError, match="no answer from Redis within 100 ms"):
            await connect(server.url, 50)

    with running_server(redis_server.binary) as server:
        run(main, server)
