"""The OpenAPI document and what the calls really answer: requests are made from it, and each answer must be one that it names."""

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.openapi.utils import get_openapi
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.hostile import cast
from tests.hostile.cast import LAB, NOBODYS, WORKING, secret
from tests.hostile.document import narrowed, whole
from tests.support.talk import Talk, talking

from fairlane.gateway.error_codes import ERROR_CODES
from fairlane.workers.adapters.echo import echo
from fairlane.workers.sdk import Context, Task, Worker

pytestmark = pytest.mark.anyio
TYPES = ["openaiLike", "openaiCompletion", "openaiEmbedding", "resize"]
KEPT = {"task_result_ttl_ms": 600_000, "max_result_ttl_ms": 600_000}
ENDLESS = "/api/admin/events"
OPERATOR = {"Authorization": f"Bearer {secret('ops')}"}
LONG = os.environ.get("FAIRLANE_LONG") == "1"
EXAMPLES = {
    schemathesis.GenerationMode.POSITIVE: 40 if LONG else 6,
    schemathesis.GenerationMode.NEGATIVE: 20 if LONG else 3,
}
CHECKED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def make(operation: Any, mode: schemathesis.GenerationMode, url: str) -> list[str]:
    """Send requests of one call, and compare each answer with the document. What is wrong."""
    sent = 0

    @seed(1)
    @settings(
        max_examples=EXAMPLES[mode],
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        nonlocal sent
        sent += 1
        answer = case.call(base_url=url, headers=OPERATOR, timeout=15, allow_redirects=False)
        case.validate_response(answer, checks=CHECKED)

    try:
        send()
    except FailureGroup as group:
        return [f"{operation.label}: {failure}" for failure in group.exceptions]
    except HypothesisException:  # a call without parameters has nothing that could be wrong
        assert mode is schemathesis.GenerationMode.NEGATIVE, operation.label
        return []
    return [] if sent else [f"{operation.label}: no request"]


def compare(document: dict[str, Any], url: str) -> tuple[int, list[str]]:
    """How many calls were made, and what was not answered as the document says."""
    calls, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for result in schemathesis.openapi.from_dict(document).get_all_operations():
            operation: Any = result.ok()
            if operation.path != ENDLESS:
                calls += 1
                wrong += [fault for mode in EXAMPLES for fault in make(operation, mode, url)]
    return calls, wrong


@contextlib.asynccontextmanager
async def working(talk: Talk, released: asyncio.Event) -> AsyncIterator[None]:
    """Workers that answer at once, and one that runs one task at a time until it is released. `talk` is an operator."""
    talk.http.headers.update(OPERATOR)
    quick = Worker("quick", gateway=talk.served.url, slots=50, token=secret(cast.ANY_WORKER))
    quick.handler(models=[*WORKING, "default"], task_types=TYPES)(echo)
    slow = Worker("slow", gateway=talk.served.url, slots=1, token=secret(cast.ANY_WORKER))

    @slow.handler(models=[LAB])
    async def wait(task: Task, context: Context) -> str:
        await released.wait()
        return "done"

    stop = asyncio.Event()
    serving = [asyncio.create_task(worker.serve(stop)) for worker in (quick, slow)]
    try:
        await talk.workers(2)
        yield
    finally:
        released.set()
        stop.set()
        await asyncio.gather(*serving)


async def ended(talk: Talk) -> tuple[str, ...]:
    """Tasks that are over, each in another way."""
    done = await talk.submit(model=WORKING[0])
    left = await talk.submit(model=WORKING[0])
    await talk.http.post(f"/api/task/{left}/cancel", json={})
    return done, left, NOBODYS


@pytest.mark.slow
@pytest.mark.timeout(1800 if LONG else 240)
async def test_every_answer_is_one_that_the_document_names(redis_url: str, tmp_path: Path) -> None:
    released = asyncio.Event()
    async with talking(redis_url, tmp_path, **cast.settings(**KEPT)) as talk, working(talk, released):
        document = (await talk.http.get("/openapi.json")).json()
        live = (await talk.submit(model=LAB), await talk.submit(model=LAB))
        names = (
            "/api/task/{task_id}",
            "/api/admin/tasks/{task_id}",
            "/api/admin/overview",
            "/api/admin/tasks",
        )
        polled = {**document, "paths": {name: document["paths"][name] for name in names}}
        assert await asyncio.to_thread(compare, narrowed(polled, live), talk.served.url) == (len(names), [])
        released.set()
        over = await ended(talk)
        calls, wrong = await asyncio.to_thread(compare, narrowed(document, (*live, *over)), talk.served.url)
    assert not wrong, "\n".join(wrong)
    assert calls == sum(map(len, document["paths"].values())) - 1


async def test_the_document_is_served_without_a_key_and_so_is_its_page(
    redis_url: str, tmp_path: Path
) -> None:
    async with talking(redis_url, tmp_path, **cast.settings(**KEPT)) as talk:
        answer = await talk.http.get("/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == whole()
        assert whole()["info"]["title"] == "Fairlane"
        calls = [call for path in answer.json()["paths"].values() for call in path.values()]
        assert [call for call in calls if not call.get("description", "")[:1].isupper()] == []
        assert (await talk.http.get("/docs")).headers["content-type"].startswith("text/html")
        feed = answer.json()["paths"][ENDLESS]["get"]["responses"]["200"]["content"]
        async with talk.http.stream("GET", ENDLESS, headers=OPERATOR) as pictures:
            assert pictures.headers["content-type"].partition(";")[0] in feed


def test_the_document_is_complete() -> None:
    document = whole()
    calls = [(path, call) for path, calls in document["paths"].items() for call in calls.values()]
    ids = [call["operationId"] for _, call in calls]
    assert len(ids) == len(set(ids))
    assert {"tasks.create", "tasks.events", "chat.completions.create", "admin.keys.list"} <= {*ids}
    for path, call in calls:
        assert call["summary"][:1].isupper(), path
        for answer in call["responses"].values():
            assert ("x-ratelimit-remaining-tokens" in answer.get("headers", {})) is path.startswith("/v1/"), (
                path
            )
        proofs = [name for one in call.get("security", ()) for name in one]
        wants = ["key"] if "operators" in call["tags"] else ["key", "signedToken"]
        assert proofs in (wants, []), path


def test_the_document_has_every_error_code() -> None:
    codes = {row["code"]: row for row in whole()["x-error-codes"]}
    assert codes.keys() == ERROR_CODES.keys()
    assert codes["QUEUE_FULL"]["statuses"] == {"native": [503], "openai": [503], "anthropic": [529]}


async def test_the_document_is_made_once_for_all_who_ask_at_the_same_time(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0

    def counted(**about: Any) -> dict[str, Any]:
        nonlocal made
        made += 1
        return get_openapi(**about)

    monkeypatch.setattr("fastapi.applications.get_openapi", counted)
    async with talking(redis_url, tmp_path, **cast.settings()) as talk:
        answers = await asyncio.gather(*[talk.http.get("/openapi.json") for _ in range(12)])
    assert len({answer.text for answer in answers}) == 1
    assert made == 1


async def test_a_document_that_could_not_be_made_is_made_again(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> dict[str, Any]:
        raise MemoryError

    async with talking(redis_url, tmp_path, **cast.settings()) as talk:
        with monkeypatch.context() as once:
            once.setattr("fastapi.applications.get_openapi", broken)
            assert (await talk.http.get("/openapi.json")).status_code == 500
        assert (await talk.http.get("/openapi.json")).status_code == 200
