"""A hostile run, a fiftieth of the size of `make hostile`; and its parts: they miss no call and notice what must not be."""

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.answers import Answer, AnswerReader, fault_of
from tests.hostile.corpus import Known, calls, valid
from tests.hostile.document import narrowed, whole
from tests.hostile.mutations import KINDS, plan
from tests.hostile.run import Size, run

REQUESTS = int(os.environ.get("FAIRLANE_REQUESTS", "4000"))
SEED = int(os.environ.get("FAIRLANE_SEED", "9"))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.skipif(sys.platform != "linux", reason="counts the gateway's open files")
def test_a_gateway_under_attack_serves_those_who_behave(tmp_path: Path) -> None:
    outcome = asyncio.run(run(Size(REQUESTS, 1800 if REQUESTS > 100_000 else 15, SEED), tmp_path))
    print(outcome.render())
    assert not outcome.broken
    assert sum(part.total for part in outcome.parts) > 100


def test_the_document_names_every_call_and_no_other() -> None:
    document = narrowed(whole())
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == set(calls())


def test_every_call_gets_a_request_to_its_path() -> None:
    for method, path in calls():
        request = valid(random.Random(1), Known(), (method, path))
        assert request.bytes().startswith(f"{method} {path.partition('{')[0]}".encode())
        assert "{" not in request.path


def test_the_same_seed_and_number_send_the_same_bytes() -> None:
    made = [plan(7, number, Known()) for number in range(300)]
    assert made == [plan(7, number, Known()) for number in range(300)]
    assert len({one.kind for one in made}) == len(KINDS)


ANSWERS = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"  # to HEAD
    b"HTTP/1.1 204 No Content\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
)


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_answers_are_cut_apart_however_they_arrive(step: int) -> None:
    reader = AnswerReader(("GET", "HEAD", "GET", "GET", "GET"))
    for at in range(0, len(ANSWERS), step):
        reader.feed(ANSWERS[at : at + step])
    found = [(answer.status, answer.body, answer.whole) for answer in reader.answers]
    bodies = [(200, b"ok"), (200, b""), (204, b""), (200, b"abcde"), (404, b"")]
    assert (reader.broken, found) == ("", [(*body, True) for body in bodies])


def test_bytes_that_are_no_answer_are_noticed() -> None:
    chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    for data in (b"hello", b"HTTP/1.1 two hundred\r\n\r\n", chunk):
        reader = AnswerReader()
        reader.feed(data)
        assert reader.broken


def openai(code: str) -> dict[str, Any]:
    return {
        "error": {
            "message": "no",
            "type": "server_error",
            "param": None,
            "code": code,
            "docs_url": f"/docs#{code}",
        }
    }


@pytest.mark.parametrize(
    ("status", "body", "is_fault"),
    [
        (200, {"anything": 1}, False),
        (400, {"error": "It is wrong", "code": "INVALID_REQUEST"}, False),
        (404, openai("model_not_found"), False),
        (503, {"error": "Queue is full", "code": "QUEUE_FULL", "retryAfterMs": 1000}, False),
        (500, {"error": "the worker's own words", "code": "WORKER_ERROR", "taskId": "t"}, False),
        (400, b"Invalid HTTP request received.", False),
        (500, {"error": "Internal error", "code": "INTERNAL"}, True),
        (503, openai("STORE_UNAVAILABLE"), True),
        (500, b"Internal Server Error", True),
        (400, {"detail": "no"}, True),
        (404, {"error": "", "code": "X"}, True),
        (200, b"data: canary-bob", True),
        (200, b"Traceback (most recent call last):\n", True),
    ],
)
def test_an_answer_that_must_not_be_is_a_fault(status: int, body: Any, is_fault: bool) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert bool(fault_of(Answer(status, {}, data, True))) is is_fault
