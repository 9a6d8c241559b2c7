"""A gateway without keys answers this machine's own programs, and refuses what came through others."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.talk import Talk
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]

REFUSED = [{"Via": "1.1 proxy"}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}]


@pytest.mark.parametrize("headers", REFUSED)
async def test_an_open_gateway_refuses_strangers(shared_gateway: Start, headers: dict[str, str]) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for method, path in (("POST", "/api/openai"), ("GET", "/api/admin/overview"), ("GET", "/api/task/x")):
            answer = await talk.http.request(
                method, path, headers=headers, json={} if method == "POST" else None
            )
            assert answer.status_code == 403
            assert answer.json()["code"] == "FORBIDDEN"
            assert "no keys" in answer.json()["error"]
        answer = await talk.http.post("/v1/chat/completions", json={}, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"]["type"] == "permission_error"
        assert await worker.idle(0.05)


@pytest.mark.parametrize("headers", REFUSED[::2])
async def test_an_open_gateway_takes_no_workers_from_strangers(
    shared_gateway: Start, headers: dict[str, str]
) -> None:
    async with shared_gateway() as talk:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(talk.served.ws, additional_headers=headers, proxy=None):
                pass
        assert refused.value.response.status_code == 403
        assert (await talk.state())["workers"] == []


async def test_an_open_gateway_believes_user_and_tier(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker():
        headers = {b"X-Fairlane-User": "zoë".encode(), b"X-Fairlane-Tier": b"paid"}
        answer = await talk.http.post("/api/openai", json={"async": True}, headers=headers)
        assert answer.status_code == 202
        task_id = answer.json()["taskId"]
        row = await talk.row(task_id)
        assert (row["user"], row["queue"], row["key"]) == ("zoë", "paid_batch", None)
        assert (await talk.http.get(f"/api/task/{task_id}")).status_code == 404
        assert (await talk.http.get(f"/api/task/{task_id}", headers=headers)).status_code == 200


async def test_health_is_answered_to_anyone(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        for path in ("/livez", "/readyz"):
            answer = await talk.http.get(path, headers={"Host": "evil.example", "Via": "x"})
            assert answer.status_code == 200
