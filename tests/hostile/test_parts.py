"""The parts of the hostile run: they miss no call, read answers right, can be repeated, and notice what must not be."""

import asyncio
import contextlib
import functools
import json
import random
from typing import Any

import pytest
from tests.hostile.answers import Answer, AnswerReader, fault_of
from tests.hostile.connection import carry_out
from tests.hostile.corpus import CALLS, Known, any_valid
from tests.hostile.document import application, narrowed, whole
from tests.hostile.frames import frame, odd_frames
from tests.hostile.mutations import KINDS, Plan, plan
from tests.hostile.report import Outcome, Part, no_faults, quantile, render, within_a_fifth
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

pytestmark = pytest.mark.anyio


@functools.cache
def document() -> dict[str, Any]:
    """Made when it is asked for: all who collect tests would wait for it."""
    return narrowed(whole())


# ---- no call is missed ----------


def test_the_document_names_every_call_and_no_other() -> None:
    named = {(method.upper(), path) for path, methods in document()["paths"].items() for method in methods}
    assert named == set(application().calls)


def test_there_is_a_valid_request_of_every_call_and_no_other() -> None:
    assert set(CALLS) == set(application().calls)
    rng, known = random.Random(1), Known()
    for (method, path), make in CALLS.items():
        for _ in range(20):
            request = make(rng, known)
            assert request.method == method
            assert request.path.startswith(path.partition("{")[0])
            assert request.bytes().startswith(f"{method} {path.partition('{')[0]}".encode())


# ---- what is sent ----------


def test_the_same_seed_and_number_send_the_same_bytes() -> None:
    assert [plan(7, number, Known()) for number in range(300)] == [plan(7, n, Known()) for n in range(300)]
    assert plan(7, 1, Known()) != plan(8, 1, Known())


def test_every_kind_of_connection_comes_up() -> None:
    kinds = {plan(3, number, Known()).kind for number in range(600)}
    assert len(kinds) == len(KINDS)


def test_requests_of_a_proper_plan_are_framed_right() -> None:
    """Each ends where its Content-Length says, so that the next one begins there."""
    for number in range(400):
        made = plan(5, number, Known())
        if made.proper and made.kind in ("valid", "bodies", "slow"):
            rest, found = b"".join(made.writes), 0
            while rest:
                head, blank, rest = rest.partition(b"\r\n\r\n")
                assert blank
                lengths = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
                rest = rest[int(lengths[0].partition(b": ")[2]) if lengths else 0 :]
                found += 1
            assert found == made.requests


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_is_what_websockets_reads(size: int) -> None:
    stream = StreamReader()
    stream.feed_data(frame(b"x" * size))
    parsing = Frame.parse(stream.read_exact, mask=True)
    with pytest.raises(StopIteration) as done:
        next(parsing)
    read = done.value.value
    assert (read.opcode, read.data, read.fin) == (Opcode.TEXT, b"x" * size, True)


def test_rogues_send_every_kind_and_repeat_themselves() -> None:
    def all_of(seed: int) -> list[tuple[str, bytes]]:
        rng = random.Random(seed)
        return [odd_frames(rng, {"taskId": "t", "attempt": 1}) for _ in range(500)]

    assert all_of(1) == all_of(1)
    assert len({kind for kind, _ in all_of(1)}) >= 14


def test_schemathesis_makes_good_and_wrong_requests_of_a_call() -> None:
    import schemathesis
    from tests.hostile.generated import make, operations_of

    whole = document()
    (operation,) = operations_of({**whole, "paths": {"/v1/embeddings": whole["paths"]["/v1/embeddings"]}})
    for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
        made = make(operation, mode, 1, 1, float("inf"))
        assert made
        for method, data in made:
            assert data.startswith(f"{method} ".encode())
            assert b"Authorization: Bearer " in data


# ---- what is read ----------

ANSWERS = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"  # to HEAD
    b"HTTP/1.1 204 No Content\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
)


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_answers_are_cut_apart_however_they_come(step: int) -> None:
    reader = AnswerReader(("GET", "HEAD", "GET", "GET", "GET"))
    for at in range(0, len(ANSWERS), step):
        reader.feed(ANSWERS[at : at + step])
    assert not reader.broken
    found = [(answer.status, answer.body, answer.whole) for answer in reader.answers]
    assert found == [
        (200, b"ok", True),
        (200, b"", True),
        (204, b"", True),
        (200, b"abcde", True),
        (404, b"", True),
    ]


def test_what_is_no_answer_is_noticed() -> None:
    for data in (
        b"hello",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ):
        reader = AnswerReader()
        reader.feed(data)
        assert reader.broken


def answer(status: int, body: Any) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {}, data, True)


def openai(code: str) -> dict[str, Any]:
    return {"error": {"message": "no", "type": "server_error", "param": None, "code": code}}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"anything": 1}),
        (400, {"error": "It is wrong", "code": "INVALID_REQUEST"}),
        (404, openai("model_not_found")),
        (503, {"error": "Queue is full", "code": "QUEUE_FULL", "retryAfterMs": 1000}),
        (500, {"error": "the worker's own words", "code": "WORKER_ERROR", "taskId": "t"}),
        (504, openai("TOTAL_TIMEOUT")),
        (400, b"Invalid HTTP request received."),
        (401, {"error": "A worker token is needed"}),
    ],
)
def test_documented_answers_are_no_faults(status: int, body: Any) -> None:
    assert fault_of(answer(status, body)) == ""


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, {"error": "Internal error", "code": "INTERNAL"}),
        (503, openai("STORE_UNAVAILABLE")),
        (502, openai("STORE_LOST")),
        (500, b"Internal Server Error"),
        (400, {"detail": "no"}),
        (404, {"error": "", "code": "X"}),
        (200, b"data: canary-bob"),
        (200, b"Traceback (most recent call last):\n"),
    ],
)
def test_what_must_not_be_is_a_fault(status: int, body: Any) -> None:
    assert fault_of(answer(status, body))


async def test_a_server_that_does_not_answer_or_answers_wrongly_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.hostile.connection.PATIENCE_S", 0.2)
    replies = {
        b"/silent": b"",
        b"/wrong": b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops",
        b"/open": ANSWERS[25:63],
    }

    served: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        served.append(task)
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            writer.write(replies[line.split(b" ")[1]])
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    part = Part("wire")
    for number, path in enumerate(replies):
        data = b"GET %b HTTP/1.1\r\n\r\n" % path
        wants = frozenset((401,)) if path == b"/open" else None
        await carry_out(port, Plan("valid", [data], methods=("GET",), proper=True, wants=wants), part, number)
    server.close()
    await asyncio.gather(*served)
    await server.wait_closed()
    assert {(fault.number, fault.what.split(" to ")[0]) for fault in part.faults} == {
        (0, "no answer within 0 s"),
        (1, "a 500 of no known shape"),
        (2, "200 instead of [401]"),
    }


# ---- what is said ----------


def test_a_run_holds_only_if_everything_held() -> None:
    part = Part("wire")
    part.sent("valid", 3)
    part.answered("valid", 200)
    part.answered("valid", 503, "QUEUE_FULL")
    outcome = Outcome(42, 1.0, [part])
    outcome.check("no answer that must not be", *no_faults([part]))
    assert outcome.held
    text = render(outcome)
    assert "200:1 503:1" in text
    assert "503 QUEUE_FULL x 1" in text
    assert "everything held" in text
    part.fault("valid", 17, "500 INTERNAL", b"GET /", b"oops")
    outcome = Outcome(42, 1.0, [part])
    outcome.check("no answer that must not be", *no_faults([part]))
    assert not outcome.held
    text = render(outcome)
    assert "BROKEN no answer that must not be: 1 x 500 INTERNAL" in text
    assert "number 17" in text
    assert "SEED=42" in text


def test_memory_is_back_within_a_fifth() -> None:
    assert within_a_fifth(100, 120)
    assert not within_a_fifth(100, 121)


def test_quantiles_are_of_what_was_measured() -> None:
    assert quantile([], 0.5) == 0
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([1, 2], 1) == 2


def test_any_valid_request_is_seldom_an_expensive_one() -> None:
    rng = random.Random(1)
    paths = [any_valid(rng, Known()).path for _ in range(2000)]
    assert paths.count("/metrics") < 20
