"""Errors as each surface tells them, and the one table of failure codes behind it."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlane.gateway.errors import (
    BARE,
    ApiError,
    NoWorker,
    anthropic_answer,
    gateway_failed,
    model_not_found,
    native_answer,
    openai_answer,
    speaks_anthropic,
    task_failed,
)
from fairlane.queues.failures import CANCELLED, FAILURES, anthropic_kind, failure_row, openai_kind
from fairlane.streaming.events import Failure
from fairlane.streaming.views.messages import MessagesStreamView
from fairlane.streaming.views.sse import error_body
from fairlane.streaming.views.task import TaskInfo
from fairlane.workers.protocol import FAILURE_CODES

ROOT = Path(__file__).parents[3]


def failed(code: str, *, retryable: bool = False, took_ms: int = 0) -> ApiError:
    return task_failed(Failure("It failed", code, retryable), "t", took_ms=took_ms)


def codes_in_the_source() -> Iterator[str]:
    """The failure codes that the source names where a task or a stream is ended."""
    for folder in ("gateway", "streaming", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    name = (
                        node.func.attr
                        if isinstance(node.func, ast.Attribute)
                        else getattr(node.func, "id", "")
                    )
                    if name in (
                        "fail",
                        "fragment_error",
                        "error_frame",
                        "failed",
                        "gateway_failed",
                        "TaskError",
                        "Fragment",
                    ):
                        texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
                        yield from (
                            t for t in texts if isinstance(t, str) and t and t == t.upper() and " " not in t
                        )


def test_every_code_that_ends_a_task_has_a_row() -> None:
    named = set(codes_in_the_source())
    assert {"TOTAL_TIMEOUT", "NO_WORKER", "PROTOCOL_ERROR", "GATEWAY_STOPPING"} <= named, "they are found"
    assert named <= set(FAILURES)


def test_workers_and_callers_are_told_the_same_of_a_code() -> None:
    assert {code: failure_row(code).retry for code in FAILURE_CODES} == FAILURE_CODES
    assert set(FAILURE_CODES) <= set(FAILURES)


@pytest.mark.parametrize("code", [*FAILURES, "MADE_UP"])
def test_a_stream_and_a_body_tell_a_failure_alike(code: str) -> None:
    in_stream = json.loads(error_body("It failed", code))
    answer = openai_answer(failed(code))
    assert json.loads(answer.body) == in_stream
    assert answer.status == failure_row(code).openai
    assert in_stream["error"]["type"] == openai_kind(answer.status)


@pytest.mark.parametrize("code", [*FAILURES, "MADE_UP"])
def test_anthropics_stream_and_answer_tell_a_failure_alike(code: str) -> None:
    view = MessagesStreamView(TaskInfo("t", "m", 0, "openaiLike"))
    in_stream = json.loads(view.failed("It failed", code).split(b"data: ")[1])
    answer = anthropic_answer(failed(code), "req_1")
    assert json.loads(answer.body) == {**in_stream, "request_id": "req_1"}
    assert answer.status == {"MODEL_TOO_BUSY": 529}.get(code, failure_row(code).openai)
    assert in_stream["error"]["type"] == anthropic_kind(answer.status)
    assert in_stream["error"]["details"] == {"error_code": code}
    assert dict(answer.headers) == dict(openai_answer(failed(code)).headers)


@pytest.mark.parametrize(
    ("path", "version", "anthropics"),
    [
        ("/v1/messages", None, True),
        ("/v1/messages/count_tokens", None, True),
        ("/v1/v1/messages", None, True),
        ("/v1/models", "2023-06-01", True),
        ("/v1/models", None, False),
        ("/v1/chat/completions", None, False),
        ("/v1/messagesque", None, False),
        ("/api/openai", "2023-06-01", False),
        ("/api/v1/messages", "2023-06-01", False),
    ],
)
def test_who_speaks_anthropic(path: str, version: str | None, anthropics: bool) -> None:
    assert speaks_anthropic(path, version) is anthropics


@pytest.mark.parametrize("code", FAILURES)
def test_natively_a_failed_task_is_a_500_with_its_code_and_a_cancelled_one_a_499(code: str) -> None:
    answer = native_answer(failed(code))
    assert answer.status == {CANCELLED: 499, "MODEL_NOT_FOUND": 404, "UNAUTHORIZED": 401}.get(code, 500)
    category = FAILURES[code].category
    assert json.loads(answer.body) == {
        "error": "It failed",
        "code": code,
        "category": category,
        "taskId": "t",
    } | ({} if code in BARE else {"docsUrl": f"/docs#{code}"})


@pytest.mark.parametrize(
    "surface", [native_answer, openai_answer, lambda error: anthropic_answer(error, "r")]
)
@pytest.mark.parametrize(
    "code", ["UPSTREAM_ERROR", "MODEL_TOO_BUSY", "TOTAL_TIMEOUT", "BAD_REQUEST", "MADE_UP"]
)
def test_what_is_final_says_that_no_retry_helps_and_nothing_else_does(surface: Any, code: str) -> None:
    assert dict(surface(failed(code)).headers)[b"x-should-retry"] == b"false"
    assert b"x-should-retry" not in dict(surface(failed(code, retryable=True)).headers)


@pytest.mark.parametrize(("took_ms", "seconds"), [(0, b"1"), (4200, b"5"), (90_000, b"60")])
def test_a_503_of_a_task_says_to_come_again_after_the_time_it_took(took_ms: int, seconds: bytes) -> None:
    answer = openai_answer(failed("MODEL_TOO_BUSY", retryable=True, took_ms=took_ms))
    assert dict(answer.headers)[b"retry-after"] == seconds
    assert b"retry-after" not in dict(openai_answer(failed("UPSTREAM_ERROR", took_ms=took_ms)).headers)
    assert b"retry-after" not in dict(native_answer(failed("MODEL_TOO_BUSY", took_ms=took_ms)).headers)


def test_a_task_that_the_store_lost_has_one_status_on_each_surface() -> None:
    lost = gateway_failed("STORE_LOST", "The store lost this task", "t")
    assert (native_answer(lost).status, openai_answer(lost).status) == (500, 502)
    late = gateway_failed("TOTAL_TIMEOUT", "Task timeout", "t")
    assert (native_answer(late).status, openai_answer(late).status) == (500, 504)
    assert dict(openai_answer(late).headers)[b"x-should-retry"] == b"false"


def test_a_model_that_is_not_found_has_one_spelling_and_status_on_each_surface() -> None:
    unknown, uncovered = NoWorker("m", 5000, unknown=True), model_not_found("m")
    natively = [
        (answer.status, json.loads(answer.body)["code"])
        for answer in map(native_answer, (unknown, uncovered))
    ]
    assert natively == [(503, "NO_WORKER"), (404, "MODEL_NOT_FOUND")]
    assert dict(native_answer(unknown).headers)[b"retry-after"] == b"5"
    first, second = map(openai_answer, (unknown, uncovered))
    assert first == second
    assert (first.status, json.loads(first.body)["error"]["code"], first.headers) == (
        404,
        "model_not_found",
        [],
    )
    away = openai_answer(NoWorker("m", 5000, unknown=False))
    told = json.loads(away.body)["error"]
    assert (away.status, told["code"], told["param"]) == (503, "NO_WORKER", "model")


def test_a_native_call_that_names_no_model_is_told_so_where_nobody_knows_the_default_one() -> None:
    missing = NoWorker("default", 5000, unknown=True)
    answer = native_answer(missing)
    assert (answer.status, json.loads(answer.body)) == (
        400,
        {
            "error": "`model` is required: no worker serves `default`. See GET /v1/models.",
            "code": "INVALID_REQUEST",
            "docsUrl": "/docs#INVALID_REQUEST",
        },
    )
    assert dict(answer.headers) == {}
    assert openai_answer(missing).status == 404  # there it is a name like any other
    assert native_answer(NoWorker("default", 5000, unknown=False)).status == 503


@pytest.mark.parametrize(("away_ms", "told"), [(0, b"1"), (2500, b"3"), (45_000, b"10"), (60_000, b"10")])
def test_who_finds_no_worker_is_told_a_short_time(away_ms: int, told: bytes) -> None:
    for answer in (openai_answer, native_answer):
        headers = dict(answer(NoWorker("m", away_ms, unknown=False)).headers)
        assert headers[b"retry-after"] == told
        assert b"x-should-retry" not in headers


def test_a_cancelled_task_is_told_by_one_code() -> None:
    refused = ApiError(499, CANCELLED, "The task was cancelled before it was accepted")
    for error in (task_failed(None, "t"), refused):
        assert json.loads(native_answer(error).body)["code"] == "CANCELLED"
        answer = openai_answer(error)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (499, "cancelled")
        assert dict(answer.headers)[b"x-should-retry"] == b"false"
