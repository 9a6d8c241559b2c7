"""Files that requests name by their ids: what workers get, what is kept, whose they must be, what is refused."""

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from tests.integration.native.keys import key, secret
from tests.integration.responses.asking import Asker, answer_with, good, refused
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.signing import derived, token
from tests.support.talk import Talk

from fairlane.gateway.calls import bodies
from fairlane.gateway.database.tables import responses
from fairlane.gateway.files.storage import StorageError
from fairlane.gateway.settings import KeyQuota, PriceSettings

from .uploads import upload

pytestmark = pytest.mark.anyio
ACCOUNTS = [
    *(key("acme"), key("other"), key("ops", admin=True)),
    key("site", delegating=True, signing=True, signing_key=derived(secret("site")).hex()),
    key("forms", delegating=True, user_from="body.user"),
    key("slow", limits={"requests_per_minute": 1}),
    key("small", limits={"tokens_per_minute": 1000}),
    key("poor", quota=KeyQuota.model_validate({})),
]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
PDF = b"%PDF-1.7 " + b"x" * 1000


@pytest.fixture
async def talk(shared_gateway: Callable[..., AbstractAsyncContextManager[Talk]]) -> AsyncIterator[Talk]:
    async with shared_gateway(keys=ACCOUNTS, routes={"assistant": {"model": "m"}}) as talk:
        yield talk


@pytest.fixture
async def worker(talk: Talk) -> AsyncIterator[RawWorker]:
    async with talk.worker2(["m"]) as worker:
        yield worker


@pytest.fixture
async def acme(talk: Talk) -> AsyncIterator[Asker]:
    async with talk.client(secret("acme")) as http:
        yield Asker(http, talk)


def url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def message(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "see"}, *parts]}]


async def bring(asker: Asker, data: bytes, name: str, purpose: str = "user_data") -> str:
    told = await upload(asker.http, data, name, fields={"purpose": purpose})
    return str(told["id"])


async def said(asker: Asker, worker: RawWorker, items: Any, **fields: Any) -> tuple[dict[str, Any], Any]:
    """The response, and the content of the last message that its worker got."""
    call = asker.talk.later(asker.ask(items, **fields))
    task = await answer_with(worker, "that")
    return await call, task["payload"]["messages"]


def reads_of(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    reads: list[str] = []
    storage = talk.served.gateway.tasks.files._storage
    read = storage.read

    def noted(name: str, *place: int) -> Any:
        if name.startswith("file-"):  # the storage's own mark is read from time to time
            reads.append(name)
        return read(name, *place)

    monkeypatch.setattr(storage, "read", noted)
    return reads


async def test_a_worker_gets_the_data(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    image = await bring(acme, PNG, "dot.bin", "vision")
    file = await bring(acme, PDF, "letter.pdf", "assistants")
    large = await bring(acme, b"word " * 50_000, "notes.txt", "batch")
    items = [
        *message({"type": "input_image", "file_id": image, "detail": "high"}),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [
                {"type": "input_file", "file_id": file, "filename": "mine.pdf"},
                {"type": "input_file", "file_id": large},
            ],
        },
    ]
    _, messages = await said(acme, worker, items)
    assert messages[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": url("image/png", PNG), "detail": "high"}},
    ]
    assert messages[2]["content"] == [
        {"type": "file", "file": {"file_data": url("application/pdf", PDF), "filename": "mine.pdf"}},
        {
            "type": "file",
            "file": {"file_data": url("text/plain", b"word " * 50_000), "filename": "notes.txt"},
        },
    ]


async def test_what_is_kept_is_the_id_and_a_conversation_reads_it_again(
    talk: Talk, acme: Asker, worker: RawWorker
) -> None:
    image = await bring(acme, PNG, "dot.png")
    part = {"type": "input_image", "file_id": image}
    first, messages = await said(acme, worker, message(part))
    picture = {"type": "image_url", "image_url": {"url": url("image/png", PNG)}}
    assert messages[0]["content"][1] == picture
    [item] = good(await acme.call("GET", first["id"], "/input_items"))["data"]
    assert item["content"][1] == part
    async with talk.served.gateway.database.reading() as connection:
        rows = select(func.length(responses.c.input))
        held = await connection.execute(rows.where(responses.c.task == first["id"].removeprefix("resp_")))
        assert held.scalar_one() < len(PNG)
    for _ in range(2):
        _, messages = await said(acme, worker, "and?", previous_response_id=first["id"])
        assert messages[0]["content"][1] == picture
        assert messages[2]["content"] == "and?"
        await acme.forget(first["id"])
    assert (await acme.http.delete(f"/v1/files/{image}")).status_code == 200
    answer = await acme.post("and?", previous_response_id=first["id"])
    sentence = refused(answer, 400, param="previous_response_id[0].content[1].file_id")
    assert image in sentence


async def test_a_chat_takes_files_by_their_ids(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    file = await bring(acme, PDF, "letter.pdf")
    theirs = {"type": "file", "file": {"file_id": "file-AbCdEf123"}}
    parts = [{"type": "text", "text": "see"}, {"type": "file", "file": {"file_id": file}}, theirs]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}], "seed": 3}
    for stream in (False, True):
        call = talk.later(acme.http.post("/v1/chat/completions", json={**body, "stream": stream}))
        task = await answer_with(worker, "that")
        assert (await call).status_code == 200
        assert task["payload"]["seed"] == 3
        assert task["payload"]["messages"][0]["content"] == [
            parts[0],
            {"type": "file", "file": {"file_data": url("application/pdf", PDF), "filename": "letter.pdf"}},
            theirs,
        ]
    body["messages"][0]["content"][1]["file"]["file_id"] = f"file-{'0' * 32}"  # type: ignore[index]
    answer = await acme.http.post("/v1/chat/completions", json=body)
    refused(answer, 400, param="messages[0].content[1].file.file_id")


async def test_a_file_must_be_ones_own(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    file = await bring(acme, PDF, "letter.pdf")
    parts = message({"type": "input_file", "file_id": file})
    param = "input[0].content[1].file_id"
    async with (
        talk.client(secret("other")) as other,
        talk.client(secret("ops")) as ops,
        talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as of_ann,
        talk.client(secret("site"), **{"X-Fairlane-User": "bob"}) as of_bob,
    ):
        unknown = message({"type": "input_file", "file_id": f"file-{'0' * 32}"})
        wanted = refused(await acme.post(unknown), 400, param=param)
        for http in (other, ops, of_ann):
            assert refused(await Asker(http, talk).post(parts), 400, param=param) == wanted.replace(
                "0" * 32, file.removeprefix("file-")
            )
        ann, bob = Asker(of_ann, talk), Asker(of_bob, talk)
        hers = message({"type": "input_file", "file_id": await bring(ann, PDF, "a.pdf")})
        await said(ann, worker, hers)
        refused(await bob.post(hers), 400, param=param)
        async with talk.client(secret("site")) as site:
            refused(await Asker(site, talk).post(hers), 400, param=param)
        async with talk.client(secret("forms")) as forms:  # its users stand in bodies, and a form has none
            asker = Asker(forms, talk)
            its = message({"type": "input_file", "file_id": await bring(asker, PDF, "a.pdf")})
            await said(asker, worker, its)
            refused(await asker.post(its, user="ann"), 400, param=param)


async def test_what_cannot_be_put_in_is_refused(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        gateway(keys=ACCOUNTS, max_body_bytes=20_000) as talk,
        talk.client(secret("acme")) as http,
        talk.worker2(["m"]),
    ):
        acme = Asker(http, talk)
        param = "input[0].content[1].file_id"
        text = await bring(acme, b"no image", "a.png")
        sentence = refused(
            await acme.post(message({"type": "input_image", "file_id": text})), 400, param=param
        )
        assert "image/png" in sentence
        reads = reads_of(talk, monkeypatch)
        large = await bring(acme, b"x" * 16_000, "large.txt")
        refused(await acme.post(message({"type": "input_file", "file_id": large})), 413)
        half = {"type": "input_file", "file_id": await bring(acme, b"x" * 8_000, "half.txt")}
        refused(await acme.post(message(half, half)), 413)
        refused(await acme.post(message(*[half] * 101)), 400, param="input[0].content[101].file_id")
        assert reads == [], "before anything is read"
        for beside in ({"image_url": url("image/png", PNG)}, {}):
            answer = await acme.post(message({"type": "input_image", "file_id": "file-AbC", **beside}))
            assert "POST /v1/files" in refused(answer, 400, param=param)
        answer = await acme.post(message({"type": "input_file", "file_url": "https://example.com/a.pdf"}))
        refused(answer, 400, param="input[0].content[1].file_url")


async def test_a_request_that_names_a_file_may_go_through_a_route(acme: Asker, worker: RawWorker) -> None:
    """It is looked at before the file is read, and made behind that: of all that it said."""
    file = await bring(acme, PDF, "letter.pdf")
    _, messages = await said(
        acme, worker, message({"type": "input_file", "file_id": file}), model="assistant"
    )
    assert messages[0]["content"][1]["file"]["file_data"]
    content = [{"type": "file", "file": {"file_id": file}}]
    chat = {"model": "assistant", "messages": [{"role": "user", "content": content}]}
    call = acme.talk.later(acme.http.post("/v1/chat/completions", json=chat))
    task = await answer_with(worker, "that")
    assert (await call).status_code == 200
    assert task["payload"]["messages"][0]["content"][0]["file"]["file_data"]


async def test_where_bodies_may_be_larger_there_is_room_for_one_that_names_a_file(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        gateway(max_body_bytes=80_000) as talk,
        talk.client(secret("acme")) as http,
        talk.worker2(["m"]) as worker,
    ):
        acme = Asker(http, talk)
        file = await bring(acme, b"x" * 58_000, "large.txt")
        monkeypatch.setattr(bodies, "LARGEST", 16_000)
        monkeypatch.setattr(bodies, "MAX_ARRIVING", 64_000)
        monkeypatch.setattr(bodies, "MAX_WAITING", 64_000)
        monkeypatch.setattr(bodies, "LARGE", 1000)
        _, messages = await said(acme, worker, message({"type": "input_file", "file_id": file}))
        assert len(messages[0]["content"][1]["file"]["file_data"]) > 77_000


async def test_for_a_caller_above_his_limit_no_file_is_read(
    talk: Talk, worker: RawWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talk.client(secret("slow")) as http:
        slow = Asker(http, talk)
        file = await bring(slow, PDF, "letter.pdf")
        parts = message({"type": "input_file", "file_id": file})
        chat = {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": file}}]}],
        }
        named = {"headers": {"Idempotency-Key": "mine"}}
        first, _ = await said(slow, worker, parts, **named)
        reads = reads_of(talk, monkeypatch)
        for answer in (
            await slow.post(parts),
            await slow.post(parts, background=True),
            await http.post("/v1/chat/completions", json=chat),
            await slow.post(parts, headers={"Idempotency-Key": "another"}),
        ):
            assert "requests per min (RPM): Limit 1, Used 1" in refused(answer, 429, "rate_limit_exceeded")
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert 0 < int(answer.headers["retry-after"]) <= 60
        assert reads == []
        async with talk.client(secret("ops")) as ops:
            metrics = (await ops.get("/metrics")).text
        counted = re.findall(
            r'^fairlane_tasks_refused_total\{.*reason="rate_limited".*\} (\d+)', metrics, re.MULTILINE
        )
        assert sum(map(int, counted)) == 4
        other = await slow.post(message({"type": "input_file", "file_id": file, "filename": "a"}), **named)
        refused(other, 422, "IDEMPOTENCY_KEY_REUSED")
        assert (await slow.post(parts, **named)).json() == first, "what is known is told"
        assert reads == []


@pytest.mark.parametrize("call", ["chat", "responses"])
async def test_of_a_call_that_is_refused_no_file_is_read(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whatever the reason: it costs its caller nothing, and may be repeated for ever."""
    price = PriceSettings.model_validate({"model": "m", "input": 1, "output": 1})
    async with (
        gateway(keys=ACCOUNTS, max_queue_length=1, prices=[price]) as talk,
        talk.client(secret("acme")) as http,
        talk.client(secret("poor")) as of_poor,
    ):
        talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
        acme, poor = Asker(http, talk), Asker(of_poor, talk)
        files = {asker: await bring(asker, PDF, "letter.pdf") for asker in (acme, poor)}
        reads = reads_of(talk, monkeypatch)

        async def post(asker: Asker, **fields: Any) -> httpx.Response:
            headers, body = fields.pop("headers", {}), {"model": "m", **fields}
            if call == "responses":
                body["input"] = message({"type": "input_file", "file_id": files[asker]})
                return await asker.http.post("/v1/responses", json=body, headers=headers)
            content = [{"type": "file", "file": {"file_id": files[asker]}}]
            body["messages"] = [{"role": "user", "content": content}]
            return await asker.http.post("/v1/chat/completions", json=body, headers=headers)

        refused(await post(acme, model="nobody's"), 503, "NO_WORKER")
        async with talk.worker2(["m"], slots=1) as worker:
            refused(await post(acme, model="nobody's"), 404, "model_not_found")
            refused(await post(poor), 429, "insufficient_quota")
            wrong = {"name": "a", "schema": {"type": "nothing"}, "strict": True}
            asked = (
                {"text": {"format": {"type": "json_schema", **wrong}}}
                if call == "responses"
                else {"response_format": {"type": "json_schema", "json_schema": wrong}}
            )
            refused(await post(acme, **asked), 400)
            running, waiting = (talk.later(acme.ask("what?")) for _ in range(2))
            await talk.waiting(1)
            refused(await post(acme), 503, "QUEUE_FULL")
            assert reads == []
            assert not talk.served.gateway.tasks.bodies.arriving.total
            for one in (running, waiting):
                await answer_with(worker, "that")
                await one
            named = {"headers": {"Idempotency-Key": "mine"}}
            first = talk.later(post(acme, **named))
            await answer_with(worker, "that")
            assert len(set(reads)) == 1
            told = (await first).json()
            reads.clear()
            assert (await post(acme, **named)).json() == told
            again = await post(acme, **named)
            assert again.json() == told
            assert again.headers["idempotency-replayed"] == "true"
            assert reads == []


async def test_who_joins_a_task_needs_no_files(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    file = await bring(acme, PDF, "letter.pdf")
    named = {"headers": {"Idempotency-Key": "joined"}}
    parts = message({"type": "input_file", "file_id": file})
    first = talk.later(acme.ask(parts, **named))
    task = await worker.take()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(talk.served.gateway.tasks.files, "pieces", None)  # who reads fails
        second = talk.later(acme.post(parts, **named))
        await until(lambda: len(talk.served.gateway.hub._feeds) > 0, "the second to be there")
        await worker.answer(task, result={"content": "that"})
        assert good(await second)["id"] == (await first)["id"]


@pytest.mark.parametrize("call", ["chat", "responses"])
async def test_an_answer_comes_again_when_its_file_has_gone(
    talk: Talk, acme: Asker, worker: RawWorker, call: str
) -> None:
    file = await bring(acme, PDF, "letter.pdf")
    content = [{"type": "file", "file": {"file_id": file}}]
    path, body, param = (
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": content}]},
            "messages[0].content[0].file",
        )
        if call == "chat"
        else (
            "/v1/responses",
            {"input": message({"type": "input_file", "file_id": file})},
            "input[0].content[1]",
        )
    )

    async def post(name: str) -> httpx.Response:
        headers = {"Idempotency-Key": name}
        return await acme.http.post(path, json={"model": "m", **body}, headers=headers)

    first = talk.later(post(f"gone-{call}"))
    await answer_with(worker, "that")
    told = (await first).json()
    assert (await acme.http.delete(f"/v1/files/{file}")).status_code == 200
    again = await post(f"gone-{call}")
    assert (again.status_code, again.json()) == (200, told)
    assert again.headers["idempotency-replayed"] == "true"
    refused(await post(f"new-{call}"), 400, param=f"{param}.file_id")


async def test_a_later_turn_comes_again_when_a_file_before_it_has_gone(
    talk: Talk, acme: Asker, worker: RawWorker
) -> None:
    image = await bring(acme, PNG, "dot.png")
    first, _ = await said(acme, worker, message({"type": "input_image", "file_id": image}))
    named = {"headers": {"Idempotency-Key": "turn"}, "previous_response_id": first["id"]}
    second, _ = await said(acme, worker, "and?", **named)
    assert (await acme.http.delete(f"/v1/files/{image}")).status_code == 200
    assert good(await acme.post("and?", **named)) == second
    param = "previous_response_id[0].content[1].file_id"
    refused(await acme.post("and?", previous_response_id=first["id"]), 400, param=param)


async def test_for_a_request_that_has_no_room_beside_its_file_none_is_read(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        gateway(keys=ACCOUNTS, max_queued_bytes=100_000) as talk,
        talk.client(secret("acme")) as http,
        talk.worker2(["m"]),
    ):
        acme = Asker(http, talk)
        file = {"type": "input_file", "file_id": await bring(acme, b"x" * 30_000, "half.txt")}
        reads = reads_of(talk, monkeypatch)
        text = {"type": "input_text", "text": "x" * 70_000}
        refused(await acme.post(message(text, file)), 503, "QUEUE_FULL")
        assert reads == []


async def test_before_files_are_read_it_is_seen_that_those_that_are_to_be_seen_can_be(
    talk: Talk, acme: Asker, worker: RawWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = await bring(acme, PNG + bytes(600_000), "large.png")
    text = await bring(acme, b"no image " * 100_000, "a.png")
    read: list[int] = []
    storage = talk.served.gateway.tasks.files._storage
    whole = storage.read

    async def counted(name: str, *place: int) -> Any:
        async for piece in whole(name, *place):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(storage, "read", counted)
    parts = message(*({"type": "input_image", "file_id": one} for one in (large, text)))
    refused(await acme.post(parts), 400, param="input[0].content[2].file_id")
    assert 0 < sum(read) < 10_000


async def test_a_call_with_files_is_looked_at_as_what_it_becomes(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]],
) -> None:
    """What is accepted with its files is not refused before: images go to another queue, and in this one there is room."""
    async with (
        gateway(keys=ACCOUNTS, max_queue_length=1) as talk,
        talk.client(secret("acme")) as http,
        talk.worker2(["m"], slots=1) as worker,
    ):
        talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
        acme = Asker(http, talk)
        image = await bring(acme, PNG, "dot.png")
        first, _ = await said(acme, worker, message({"type": "input_image", "file_id": image}))
        texts = [talk.later(acme.ask("what?")) for _ in range(2)]
        await talk.waiting(1)
        refused(await acme.post("what?"), 503, "QUEUE_FULL")
        seen = talk.later(acme.ask("and?", previous_response_id=first["id"]))
        await talk.waiting(2)
        for one in (*texts, seen):
            await answer_with(worker, "that")
            await one


async def test_files_of_more_tokens_than_are_left_are_not_read(
    talk: Talk, worker: RawWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talk.client(secret("small")) as http:
        small = Asker(http, talk)
        file = await bring(small, PDF * 10, "letter.pdf")
        parts = message({"type": "input_file", "file_id": file})
        await said(small, worker, "a question")
        with monkeypatch.context() as patch:
            patch.setattr(talk.served.gateway.tasks.files, "pieces", None)  # who reads fails
            answer = await small.post(parts)
        assert "tokens per min (TPM): Limit 1000" in refused(answer, 429, "rate_limit_exceeded")
        assert refused(await small.post("x" * 40_000), 429, "rate_limit_exceeded")


async def test_a_storage_that_fails_and_a_file_that_is_lost(
    talk: Talk, acme: Asker, worker: RawWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await bring(acme, PDF, "letter.pdf")
    parts = message({"type": "input_file", "file_id": file})
    storage = talk.served.gateway.tasks.files._storage
    read = storage.read

    def away(*_: Any) -> Any:
        raise StorageError("away")

    monkeypatch.setattr(storage, "read", away)
    refused(await acme.post(parts), 503, "STORAGE_UNAVAILABLE")
    monkeypatch.setattr(storage, "read", read)
    await storage.remove(file)
    refused(await acme.post(parts), 404, "FILE_NOT_FOUND", "input[0].content[1].file_id")
    assert not talk.served.gateway.tasks.bodies.arriving.total


async def test_a_token_of_a_page_is_not_for_files(talk: Talk, worker: RawWorker) -> None:
    """As on all calls of files."""
    async with (
        talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as of_ann,
        talk.client(token(secret("site"), user="ann")) as page,
    ):
        file = await bring(Asker(of_ann, talk), PDF, "a.pdf")
        asker = Asker(page, talk)
        await said(asker, worker, "what?")
        answer = await asker.post(message({"type": "input_file", "file_id": file}))
        refused(answer, 403, param="input[0].content[1].file_id")


async def test_it_makes_no_second_task_by_its_key(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    headers = {"Idempotency-Key": "mine"}
    parts = message({"type": "input_file", "file_id": await bring(acme, PDF, "letter.pdf")})
    first, _ = await said(acme, worker, parts, headers=headers)
    again = await acme.post(parts, headers=headers)
    assert again.headers["idempotency-replayed"] == "true"
    assert json.loads(again.content) == first
