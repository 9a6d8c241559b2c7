"""Addresses, delays, handlers, values."""

import math
import random
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest

from fairlane.queues import keys
from fairlane.queues.tasks import HTTP
from fairlane.workers import protocol
from fairlane.workers.sdk import BadAddressError, Context, Task, TaskError, Worker
from fairlane.workers.sdk.address import websocket_url
from fairlane.workers.sdk.backoff import Backoff, requested_pause
from fairlane.workers.sdk.errors import shorten
from fairlane.workers.sdk.handlers import Registry
from fairlane.workers.sdk.values import as_json


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http://h:1", "ws://h:1/ws"),
        ("http://h:1/", "ws://h:1/ws"),
        ("https://h", "wss://h/ws"),
        ("https://h/fairlane", "wss://h/fairlane/ws"),
        ("http://h/ws", "ws://h/ws"),
        ("ws://h:1/ws", "ws://h:1/ws"),
        ("wss://h", "wss://h/ws"),
        ("ws://h/other", "ws://h/other"),
        (" http://[::1]:8080 ", "ws://[::1]:8080/ws"),
    ],
)
def test_gateway_addresses(written: str, meant: str) -> None:
    assert websocket_url(written) == meant


@pytest.mark.parametrize("written", ["", "h:8080", "ftp://h", "http://", "http://h:x", "http://u:p@h"])
def test_what_is_no_gateway_address_is_refused_with_a_sentence(written: str) -> None:
    with pytest.raises(BadAddressError, match=r"address"):
        websocket_url(written)


class Highest(random.Random):
    """Draws the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_delays_double_to_thirty_seconds_and_fall_back_only_after_a_healthy_connection() -> None:
    backoff = Backoff(Highest())
    assert [backoff.after(0) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6]
    assert backoff.after(29) == 30
    assert backoff.after(31) == 0.2
    assert [backoff.after(0, ceiling_s=2) for _ in range(5)] == [0.4, 0.8, 1.6, 2, 2]


def test_a_handover_is_immediate_but_not_again_and_again() -> None:
    backoff = Backoff(Highest())
    assert backoff.after_handover(0) == 0
    assert backoff.after_handover(0) > 0
    assert backoff.after_handover(60) == 0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "99999"}, 3600.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, 3600.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Wed, 01 Jan 2025 00:00:30 GMT"}, 30.0),
        ({"Retry-After": "Wed, 01 Jan 2025 01:00:30 +0100"}, 30.0),
        ({"Retry-After": "Tue, 31 Dec 2024 00:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "450"}, 0.45),
        ({"Retry-After-Ms": "450", "Retry-After": "7"}, 0.45),
        ({"retry-after-ms": "soon", "Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "9999999", "Retry-After": "7"}, 3600.0),
    ],
)
def test_a_pause_is_read_from_either_header(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_pause(httpx2.Headers(headers), datetime(2025, 1, 1, tzinfo=UTC)) == seconds


async def generator(task: Task, context: Context) -> Any:
    yield "x"


async def coroutine(task: Task, context: Context) -> int:
    return 1


def test_an_exact_model_beats_any_and_a_named_type_beats_any() -> None:
    registry = Registry()
    registry.add(lambda t, c: "any", ["*"], None)
    registry.add(lambda t, c: "any model, typed", ["*"], ["x"])
    registry.add(lambda t, c: "m", ["m", "n"], None)

    def found(model: str, task_type: str) -> Any:
        route = registry.find(model, task_type)
        return route and route.handler(None, None)  # type: ignore[arg-type]

    assert found("m", "x") == "m"
    assert found("o", "x") == "any model, typed"
    assert found("o", "y") == "any"
    assert registry.models == ["*", "m", "n"]
    assert registry.task_types is None


def test_no_handler_is_found_for_what_was_not_registered() -> None:
    registry = Registry()
    registry.add(coroutine, ["m"], ["x"])
    assert registry.find("m", "y") is None
    assert registry.find("n", "x") is None
    assert registry.task_types == ["x"]


def sync_generator(task: Task, context: Context) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("handler", "models", "types", "sentence"),
    [
        (sync_generator, ["m"], None, "async generator"),
        (lambda task: 1, ["m"], None, "two arguments"),
        (coroutine, [], None, "at least one model"),
        (coroutine, "m", None, "lists of names"),
        (coroutine, ["m"], [], "task_types is empty"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_with_a_sentence(
    handler: Any, models: Any, types: Any, sentence: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        Registry().add(handler, models, types)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"slots": 0}, "slots"),
        ({"drain_ms": -1}, "drain_ms"),
        ({"gateway": "nowhere"}, "gateway address"),
        ({"token": "flw_gpu-1_…"}, "The worker token holds '…'"),
        ({"token": "flw_gpu-1_x\n"}, "The worker token holds"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_sentence(change: dict[str, Any], sentence: str) -> None:
    worker = Worker(**change)
    worker.handler(models=["m"])(generator)
    with pytest.raises(ValueError, match=sentence):
        worker.check()


def test_a_worker_without_handlers_does_not_start() -> None:
    with pytest.raises(ValueError, match="no handler"):
        Worker().check()


def test_the_environment_names_gateway_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLANE_GATEWAY", "http://g:1")
    monkeypatch.setenv("FAIRLANE_WORKER_TOKEN", "secret")
    assert (Worker().gateway, Worker().token) == ("http://g:1", "secret")
    assert Worker(gateway="http://h:2").gateway == "http://h:2"


def test_raw_json_passes_through_but_must_be_json() -> None:
    assert bytes(as_json(msgspec.Raw(b'{"a":1.50}'))) == b'{"a":1.50}'
    for bad in (b"{", b'"\xff"'):
        with pytest.raises(ValueError, match=r"."):
            as_json(msgspec.Raw(bad))
    with pytest.raises(TypeError):
        as_json(object())


def test_a_task_error_takes_its_code_s_usual_answer_and_bounds_its_sentence() -> None:
    assert TaskError("MODEL_TOO_BUSY", "x").retryable
    assert not TaskError("BAD_REQUEST", "x").retryable
    assert not TaskError("SOMETHING_ELSE", "x").retryable
    assert TaskError("BAD_REQUEST", "x", retryable=True).retryable


@pytest.mark.parametrize(
    ("asked", "sent"), [(None, None), (0, 0), (-1, 0), (1500.9, 1500), (math.inf, 3_600_000)]
)
def test_a_failure_asks_for_a_pause_of_five_minutes_at_most(asked: Any, sent: int | None) -> None:
    assert TaskError("MODEL_TOO_BUSY", "x", retry_after_ms=asked).retry_after_ms == sent
    assert len(TaskError("BAD_REQUEST", "x" * 5000).message) == 2000
    assert shorten("a\ud800b") == "a?b"


def test_a_handler_of_any_endpoint_is_found_for_endpoints_alone() -> None:
    async def models(task: Any, context: Any) -> None: ...
    async def endpoints(task: Any, context: Any) -> None: ...
    async def one(task: Any, context: Any) -> None: ...

    registry = Registry()
    registry.add(models, ["*"], None)
    assert registry.find("http:image", "http") is None
    registry.add(endpoints, [protocol.ANY_ENDPOINT], ["http"])
    registry.add(one, ["http:one"], None)
    assert registry.find("http:image", "http").handler is endpoints
    assert registry.find("http:one", "http").handler is one
    assert registry.find("http:image", "openaiLike") is None
    assert registry.find("m", "http").handler is models
    assert (protocol.ENDPOINT_PREFIX, protocol.ANY_ENDPOINT) == (keys.ENDPOINT, keys.ANY_ENDPOINT)
    assert protocol.HTTP_TASK == HTTP
