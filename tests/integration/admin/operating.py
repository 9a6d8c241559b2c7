"""What an operator does by HTTP, and what a refused caller is told."""

from typing import Any

import httpx2
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk


async def change(talk: Talk, kind: str, name: str, **values: Any) -> dict[str, Any]:
    """Change a queue or model; the answer."""
    answer = await talk.http.patch(f"/api/admin/{kind}s/{name}", json=values)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def audit(talk: Talk, **query: Any) -> dict[str, Any]:
    """A page of the audit record."""
    answer = await talk.http.get("/api/admin/audit", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def row(talk: Talk, kind: str, name: str) -> dict[str, Any]:
    """A queue or model in the state."""
    [found] = [row for row in (await talk.state())[f"{kind}s"] if row[kind] == name]
    shown: dict[str, Any] = found
    return shown


async def at_once(worker: RawWorker, number: int) -> list[dict[str, Any]]:
    """The next tasks of a worker, which are all it gets until it answers one."""
    tasks = [await worker.take() for _ in range(number)]
    assert await worker.idle()
    return tasks


def retry_s(answer: httpx2.Response) -> float:
    """When a refused caller shall come again, told in header and body alike."""
    exact = int(answer.headers["retry-after-ms"])
    assert int(answer.headers["retry-after"]) == -(-exact // 1000)
    assert exact >= 1000
    assert answer.headers.get("x-should-retry") == ("false" if exact > 60_000 else None)
    body = answer.json()
    if "retryAfterMs" in body:
        assert min(body["retryAfterMs"], 3_600_000) == exact
    return exact / 1000
