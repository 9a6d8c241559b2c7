"""Callers of Responses, and what they see."""

import json
from typing import Any

import httpx2
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.stored import forget
from tests.support.talk import Talk

from fairlane.queues.keys import Keys, pool_prefix

KEYS = Keys(pool_prefix())


class Asker:
    """A caller of Responses, on one gateway."""

    def __init__(self, http: httpx2.AsyncClient, talk: Talk) -> None:
        self.http = http
        self.talk = talk

    async def ask(self, text: Any = "what?", **fields: Any) -> dict[str, Any]:
        """POST, which must be well."""
        return good(await self.post(text, **fields))

    async def post(self, text: Any = "what?", **fields: Any) -> httpx2.Response:
        headers = fields.pop("headers", {})
        body = {"model": "m", "input": text, **fields}
        return await self.http.post("/v1/responses", json=body, headers=headers)

    async def call(self, method: str, response_id: str, path: str = "", **query: Any) -> httpx2.Response:
        return await self.http.request(method, f"/v1/responses/{response_id}{path}", params=query)

    async def get(self, response_id: str) -> dict[str, Any]:
        return good(await self.call("GET", response_id))

    async def reaches(self, response_id: str, status: str) -> dict[str, Any]:
        told: dict[str, Any] = {}

        async def reached() -> bool:
            told.clear()
            told.update(await self.get(response_id))
            return bool(told["status"] == status)

        await until(reached, f"{response_id} to be {status}")
        return told

    async def stream(self, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
        """All events from there to the end."""
        query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
        answer = await self.call("GET", response_id, **query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events_of(answer.content)

    # ---- what is where ----------

    async def archived(self) -> None:
        """Return when SQL has all that has ended."""

        async def empty() -> bool:
            return not await self.talk.served.gateway.link.command("XLEN", KEYS("archive"))

        await until(empty, "all to be archived")

    async def forget(self, response_id: str) -> None:
        """Have Redis forget one that has ended, when SQL has it."""
        task = response_id.removeprefix("resp_")
        scheduler = self.talk.served.gateway.scheduler

        async def has_it() -> bool:  # one that was cancelled is told to SQL when its worker has let it go
            record = await scheduler.position(task)
            return record is None or "archive" not in record.fields

        await until(has_it, f"{response_id} to be archived")
        await forget(self.talk.served.gateway, task)


def good(answer: httpx2.Response, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


def refused(answer: httpx2.Response, status: int, code: str | None = None, param: str | None = None) -> str:
    """The sentence of a refusal."""
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert code in (None, error["code"]), answer.text
    assert param in (None, error["param"]), answer.text
    return str(error["message"])


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream that came to its end, but places in the queue that are told again."""
    assert stream.endswith(b"data: [DONE]\n\n"), stream[-200:]
    return told_events(stream)


def told_events(stream: bytes) -> list[dict[str, Any]]:
    """The events that came whole, but places in the queue that are told again."""
    found = []
    for block in stream.split(b"\n\n")[:-1]:
        lines = [line for line in block.split(b"\n") if not line.startswith(b":")]
        data = next((line[6:] for line in lines if line.startswith(b"data: ")), b"")
        if not data or data == b"[DONE]":
            continue
        event = json.loads(data)
        assert lines[0] == b"event: " + event["type"].encode(), block
        if "fairlane" not in event:
            found.append(event)
    return found


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


async def answer_with(worker: RawWorker, *pieces: str, **more: Any) -> dict[str, Any]:
    """Take the next task and stream these pieces; the task."""
    task = await worker.take()
    for seq, piece in enumerate(pieces, 1):
        await worker.chunk(task, piece, seq)
    await worker.answer(
        task, **{"result": None, "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **more}
    )
    return task
