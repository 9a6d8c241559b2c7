"""nginx, with the configuration that stands in deploy/, in front of a real server: nobody jumps the queue."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest
from tests.support.nginx import NGINX, in_front_of, nginx
from tests.support.servers import free_port
from tests.support.serving import http_client, until
from tests.support.talk import Talk

from .asking import IMAGE, Target, ask, permit_of, target

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine"),
]

Start = Callable[..., AbstractAsyncContextManager[Talk]]
ATTEMPTS = 1000
SETTINGS = {"endpoints": {"image": IMAGE, "other": {**IMAGE, "url": "http://127.0.0.1:9/other/*"}}}


@contextlib.asynccontextmanager
async def guarded(folder: Path, behind: Target, *gateways: Talk) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller of nginx in front of a server, which asks these gateways, by the configuration in deploy/."""
    port = free_port()
    addresses = [gateway.served.url.removeprefix("http://") for gateway in gateways]
    text = in_front_of(behind.port, port, addresses)
    async with nginx(folder, text), http_client(f"http://127.0.0.1:{port}") as http:

        async def ready() -> bool:
            with contextlib.suppress(httpx2.HTTPError):
                return (await http.get("/")).status_code == 403
            return False

        await until(ready, "nginx to answer")
        yield http


def carrying(permit: str) -> dict[str, str]:
    return {"X-Fairlane-Permit": permit, "X-Task-Id": permit.partition(".")[0]}


@pytest.mark.slow
async def test_nobody_jumps_the_queue(gateway: Start, tmp_path: Path) -> None:
    """Forged, used, cancelled and foreign permits, those of others' turns, and none at all: no request comes through but
    those of the permits that were given out, each once, and never more at once than the server takes."""
    chance = random.Random(7)
    async with (
        gateway(**SETTINGS) as here,
        gateway(**SETTINGS) as there,
        target() as behind,
        guarded(tmp_path, behind, here, there) as http,
    ):
        used = [await permit_of(here, await ask(here)) for _ in range(2)]
        behind.open.clear()
        calls = [
            here.later(
                http.get(f"/image/{n}", headers=carrying(permit), timeout=60.0)
            )  # all attempts come between
            for n, permit in enumerate(used)
        ]
        await until(lambda: behind.now == 2, "both to be under way")
        waiting = [await ask(chance.choice((here, there))) for _ in range(10)]
        cancelled = await permit_of(here, await ask(here, "other"))
        foreign = await permit_of(here, await ask(here, "other"))
        await here.http.post(f"/api/task/{cancelled.partition('.')[0]}/cancel", json={})

        def attempt() -> tuple[str, dict[str, str]]:
            """A method and headers that somebody might try."""
            whose = chance.choice([*used, cancelled, foreign])
            task_id, _, signature = whose.partition(".")
            turn = chance.choice(waiting)
            at = chance.randrange(32)
            changed = signature[:at] + chance.choice("abcXYZ019_-") + signature[at + 1 :]
            headers = chance.choice(
                (
                    {},
                    carrying(whose),
                    {"X-Task-Id": turn},
                    {"X-Task-Id": turn, "X-Fairlane-Permit": whose},
                    {"X-Fairlane-Permit": f"{turn}.{signature}"},
                    {"X-Fairlane-Permit": f"{task_id}.{changed}"} if changed != signature else {},
                    {"X-Fairlane-Permit": turn},
                    {"X-Fairlane-Permit": f"{turn}.{'A' * 32}"},
                    {**carrying(foreign), "X-Original-URL": "http://127.0.0.1:9/other/a"},
                    {**carrying(foreign), "X-Forwarded-Uri": "/other/a", "X-Forwarded-Host": "127.0.0.1:9"},
                    {"X-Fairlane-Receipt": f"{turn}.{signature}"},
                    {"X-Fairlane-Permit": "x" * 3000},
                    {"Connection": "X-Fairlane-Permit", **carrying(whose)},
                )
            )
            return chance.choice(("GET", "POST", "PUT", "HEAD", "DELETE")), headers

        through, refusals = 0, set[str]()
        for _ in range(ATTEMPTS // 50):
            tries = [attempt() for _ in range(50)]
            answers = await asyncio.gather(
                *(http.request(method, "/image/jump", headers=headers) for method, headers in tries)
            )
            through += sum(answer.status_code != 403 for answer in answers)
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
            told = [answer.json() for answer in answers if answer.content]
            refusals |= {one["code"] for one in told}
            assert all(one["retryAfterMs"] >= 1000 for one in told)
        for path in ("/permit/check", "/permit/done", "/permit/done?x=1", "//permit/done"):
            answer = await http.post(path, headers={"X-Fairlane-Receipt": used[0], **carrying(used[0])})
            through += answer.status_code == 200
        assert through == 0
        assert refusals == {"PERMIT_NEEDED", "PERMIT_USED"}
        assert len(behind.requests) == 2
        behind.open.set()
        assert [(await call).text for call in calls] == ["image", "image"]
        for task in waiting:
            answer = await http.get("/image/own", headers=carrying(await permit_of(there, task)))
            assert answer.status_code == 200
        assert (len(behind.requests), behind.most) == (12, 2)


async def test_nginx_reports_the_end_so_that_the_next_one_need_not_wait(
    gateway: Start, tmp_path: Path
) -> None:
    async with gateway(**SETTINGS) as talk, target() as behind, guarded(tmp_path, behind, talk) as http:
        tasks = [await ask(talk) for _ in range(6)]
        for task in (
            tasks
        ):  # `timeout_ms` is a minute: each of the last four gets his turn because the one before has ended
            answer = await http.post(
                "/image/a", headers=carrying(await permit_of(talk, task)), content=b"body"
            )
            assert answer.text == "image"
            assert (await talk.reaches(task, "completed"))["result"] == {"used": True, "reported": True}
        for _, headers in behind.requests:
            assert not [name for name in headers if name.startswith("x-fairlane")]
            assert headers["x-task-id"] in tasks


async def test_a_server_that_is_away_gives_the_place_back(gateway: Start, tmp_path: Path) -> None:
    async with gateway(**SETTINGS) as talk, target() as behind:
        behind.port = free_port()
        async with guarded(tmp_path, behind, talk) as http:
            task = await ask(talk)
            answer = await http.get("/image/a", headers=carrying(await permit_of(talk, task)))
            assert answer.status_code == 502
            assert (await talk.reaches(task, "completed"))["result"]["reported"] is True


async def test_no_gateway_lets_nobody_in(gateway: Start, tmp_path: Path) -> None:
    async with target() as behind:
        async with gateway(**SETTINGS) as gone:
            permit = await permit_of(gone, await ask(gone))
        listening = free_port()
        text = in_front_of(behind.port, listening, [gone.served.url.removeprefix("http://")])
        async with nginx(tmp_path, text), http_client(f"http://127.0.0.1:{listening}") as http:

            async def refused() -> bool:
                with contextlib.suppress(httpx2.HTTPError):
                    return (await http.get("/image/a", headers=carrying(permit))).status_code == 500
                return False

            await until(refused, "nginx to answer")
        assert behind.requests == []
