"""Callers who hang up while their call is under way, behind nginx with the configuration that stands in deploy/."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.support.nginx import NGINX
from tests.support.serving import until
from tests.support.talk import Talk

from .asking import IMAGE, ask, permit_of, target
from .test_proxies import carrying, guarded

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine"),
]

Start = Callable[..., AbstractAsyncContextManager[Talk]]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_who_hangs_up_gives_his_place_back_when_the_server_is_done_and_not_before(
    gateway: Start, tmp_path: Path, method: str
) -> None:
    """A server that does not look whether its caller is there works on: another call would be one more than it takes."""
    one = {"image": {**IMAGE, "concurrency": 1}}
    async with gateway(endpoints=one) as talk, target() as behind, guarded(tmp_path, behind, talk) as http:
        behind.open.clear()
        first, second = [await ask(talk) for _ in range(2)]
        body = b"x" * 10 if method == "POST" else None
        headers = carrying(await permit_of(talk, first))
        call = asyncio.ensure_future(http.request(method, "/image/a", headers=headers, content=body))
        await until(lambda: behind.now == 1, "the call to be under way")
        call.cancel()
        for _ in range(20):  # nginx sees that he has gone before it answers these
            assert (await http.get("/image/b")).status_code == 403
        assert (await talk.poll(first))["status"] == "executing"
        assert (await talk.poll(second))["status"] == "queued"
        behind.open.set()
        assert (await talk.reaches(first, "completed"))["result"] == {"used": True, "reported": True}
        await permit_of(talk, second)
        assert (behind.most, len(behind.requests)) == (1, 1)
