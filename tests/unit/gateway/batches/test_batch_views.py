"""What callers are told of batches and their lines, in OpenAI's form."""

import json

import pytest
from openai.types import Batch as OpenAIBatch

from fairlane.gateway.batches.models import (
    Batch,
    NotRun,
    Problem,
    Status,
    admin_view,
    answered,
    blocked_on_json,
    could_be,
    failed,
    line_task,
    new_batch_id,
    not_run,
    openai_object,
    output_file,
    read_window,
)
from fairlane.gateway.batches.store import problems_json
from fairlane.gateway.errors import ApiError, gateway_failed
from fairlane.queues.ids import could_be_ours
from fairlane.streaming.views.usage import Counts

NOW = 1_800_000_000_000
BATCH = Batch(
    *(new_batch_id(NOW), "acme", "acme", "free", "/v1/embeddings", "file-1", "24h", NOW, NOW + 86_400_000),
    model="m",
)
TASK = line_task(BATCH.id, NOW, 1)


def test_a_batch_is_what_openais_client_knows() -> None:
    ended = BATCH._replace(
        status=Status.EXPIRED, ended=NOW + 5000, began=NOW + 1000, finalizing=NOW + 4000, metadata='{"a":"b"}'
    )
    for batch in (BATCH, ended):
        shown = openai_object(batch)
        shown["metadata"] = {"a": "b"} if batch.metadata else None
        OpenAIBatch.model_validate(shown, strict=True)
    assert openai_object(ended)["expired_at"] == NOW // 1000 + 5
    assert openai_object(ended)["completed_at"] is None
    assert openai_object(BATCH)["errors"] is None


def test_what_is_wrong_with_a_file_is_told_by_line() -> None:
    problems = [Problem("invalid_json_line", "no JSON", 3), Problem("empty_file", "nothing")]
    batch = BATCH._replace(status=Status.FAILED, errors=problems_json(problems))
    errors = OpenAIBatch.model_validate(openai_object(batch)).errors
    assert errors is not None
    assert errors.data is not None
    assert [(error.code, error.line) for error in errors.data] == [
        ("invalid_json_line", 3),
        ("empty_file", None),
    ]
    shown = admin_view(batch)
    assert (shown["error"], shown["errorLine"], shown["errorParam"]) == ("no JSON", 3, None)


def test_what_a_batch_has_used_and_waits_for_is_told() -> None:
    led = BATCH._replace(
        status=Status.IN_PROGRESS,
        leader="a",
        waiting=3,
        running=2,
        blocked_on=blocked_on_json({"NO_WORKER": ["m"], "RATE_LIMITED": []}),
        input_tokens=7,
        cached_tokens=2,
        output_tokens=5,
        reasoning_tokens=1,
    )
    used = OpenAIBatch.model_validate(openai_object(led), strict=True).usage
    assert used is not None
    assert (used.input_tokens, used.output_tokens, used.total_tokens) == (7, 5, 12)
    assert used.input_tokens_details.cached_tokens == 2
    assert used.output_tokens_details.reasoning_tokens == 1
    waits = [{"code": "NO_WORKER", "models": ["m"]}, {"code": "RATE_LIMITED", "models": []}]
    standing = {"linesWaiting": 3, "linesRunning": 2, "waitsFor": waits}
    assert openai_object(led)["fairlane"] == standing
    assert standing.items() <= admin_view(led).items()
    nobodys = openai_object(led._replace(leader=""))["fairlane"]
    assert nobodys["waitsFor"] == [{"code": "NOT_ITS_TURN", "models": []}]
    ended = led._replace(status=Status.COMPLETED, leader="", blocked_on="")
    assert openai_object(ended)["fairlane"]["waitsFor"] == []


def test_what_an_answer_used_is_read_from_it() -> None:
    chat = b'{"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}'
    response = (
        b'{"usage":{"input_tokens":3,"output_tokens":4,"output_tokens_details":{"reasoning_tokens":1}}}'
    )
    assert answered(1, "a", TASK, chat).used == Counts(7, 5, 2, None)
    assert answered(1, "a", TASK, response).used == Counts(3, 4, None, 1)
    assert answered(1, "a", TASK, b"{}").used == Counts()


def test_a_line_of_an_output_file_is_one_line() -> None:
    outcome = answered(4, 'a "b"', TASK, b'{\n "x": "1\\n2"\r\n}')
    assert (outcome.line, outcome.failed) == (4, False)
    assert outcome.record.count(b"\n") == 1
    assert outcome.record.endswith(b"\n")
    record = json.loads(outcome.record)
    assert record["custom_id"] == 'a "b"'
    assert record["response"] == {"status_code": 200, "request_id": TASK, "body": {"x": "1\n2"}}
    assert record["error"] is None
    assert record["id"].startswith("batch_req_")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ApiError(400, "INVALID_REQUEST", "wrong", param="n"), 400, None),
        (gateway_failed("STORE_LOST", "lost", TASK), 502, "STORE_LOST"),
    ],
)
def test_a_line_that_failed_is_told_as_its_call_would_be_answered(
    error: ApiError, status: int, code: str | None
) -> None:
    outcome = failed(1, "a", TASK, error)
    record = json.loads(outcome.record)
    assert outcome.failed
    assert record["response"]["status_code"] == status
    assert record["response"]["body"]["error"].keys() == {"message", "type", "param", "code", "docs_url"}
    if code:
        assert record["response"]["body"]["error"]["code"] == code


def test_a_line_that_was_not_carried_out() -> None:
    record = json.loads(not_run("a", TASK, NotRun.EXPIRED))
    assert record["response"] is None
    assert record["error"]["code"] == "batch_expired"


def test_ids_follow_from_batch_and_line() -> None:
    assert could_be(BATCH.id)
    assert not could_be(BATCH.id + "0")
    assert not could_be("batch_")
    ids = {line_task(BATCH.id, NOW, line) for line in range(1, 1000)}
    assert len(ids) == 999
    assert TASK in ids
    assert all(could_be_ours(one, NOW) for one in ids)
    assert line_task(new_batch_id(NOW), NOW, 1) not in ids
    assert output_file(BATCH.id, NOW, "output", 1) == output_file(BATCH.id, NOW, "output", 1)
    assert len({output_file(BATCH.id, NOW, kind, epoch) for kind in "ab" for epoch in (1, 2)}) == 4


@pytest.mark.parametrize(
    ("text", "ms"),
    [("24h", 86_400_000), ("7d", 604_800_000), ("90s", 90_000), ("5m", 300_000)]
    + [(text, None) for text in ("", "h", "24", "0h", "-1h", "1.5h", "24H", "9999999h", "²h")],
)
def test_completion_windows(text: str, ms: int | None) -> None:
    assert read_window(text) == ms
