"""What reaches the log, and what never does."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.typing import EventDict

from fairlane.gateway.serve.logs import (
    HIDDEN,
    MAX_TEXT,
    LogFormat,
    configure_logging,
    hide_in_text,
    hide_secrets,
    mask,
)

KEY = "fl_acme_" + "A" * 43
CANARIES = ("hunter2", "A" * 43, "once upon a time")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    logging.getLogger("uvicorn.access").disabled = False
    for name in (
        *("uvicorn.error", "httpx2", "httpcore2", "websockets", "asyncio", "alembic"),
        "python_multipart",
    ):
        logging.getLogger(name).setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line_has_time_level_logger_and_ids() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger("fairlane.gateway").info("task ended", task_id="t1", worker_id="w1", attempt=2)
    structlog.get_logger("fairlane.gateway").info("later")
    first, second = lines(stream)
    assert first["event"] == "task ended"
    assert (first["task_id"], first["worker_id"], first["attempt"]) == ("t1", "w1", 2)
    assert (first["level"], first["logger"]) == ("info", "fairlane.gateway")
    assert first["time"].endswith("Z")
    assert "task_id" not in second


def test_access_lines_of_uvicorn_are_never_written() -> None:
    stream = io.StringIO()
    configure_logging("json", "debug", stream)
    logging.getLogger("uvicorn.access").info('"GET /api/task/x/events?token=%s"', "hunter2")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("log_format", ["json", "human"])
def test_canaries_reach_no_line(log_format: LogFormat) -> None:
    stream = io.StringIO()
    configure_logging(log_format, "debug", stream)
    log = structlog.get_logger("fairlane")
    log.info("call", authorization=f"Bearer {KEY}", payload={"prompt": "once upon a time"})
    log.info("call", request={"messages": [{"content": "once upon a time"}], "apiKey": "hunter2"})
    log.info("call", streamToken="hunter2", worker_token="hunter2", secret="hunter2")
    log.info("call", error=ValueError(f"bad key {KEY}"), body=b"once upon a time")
    log.info("GET /api/task/x/events?after=1-2&token=hunter2 by " + KEY)
    logging.getLogger("redis").warning("cannot connect to redis://user:hunter2@db:6379/0")
    logging.getLogger("other").warning("sent %s", {"Authorization": f"Bearer {KEY}"})
    logging.getLogger("other").warning("extra", extra={"prompt": "once upon a time"})
    try:
        local_prompt = "once upon a time"
        raise RuntimeError(f"rejected Authorization: Bearer {KEY}" if local_prompt else "")
    except RuntimeError:
        log.exception("failed")
        logging.getLogger("other").exception("failed")
    written = stream.getvalue()
    assert "RuntimeError" in written
    assert "redis://" in written
    for canary in CANARIES:
        assert canary not in written, canary
    if log_format == "json":
        assert len(lines(stream)) == 10


def hidden(**fields: Any) -> EventDict:
    return dict(hide_secrets(None, "info", fields))


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "api_key",
        "apikey",
        "apiKey",
        "token",
        "worker_token",
        "streamToken",
        "secret",
        "client-secret",
        "authorization",
        "Authorization",
        "payload",
        "prompt",
        "system_prompt",
        "messages",
        "content",
        "cookie",
        "password",
    ],
)
def test_values_are_masked_by_their_names(name: str) -> None:
    assert hidden(**{name: "x"}) == {name: HIDDEN}
    assert hidden(outer=[{name: "x"}]) == {"outer": [{name: HIDDEN}]}


@pytest.mark.parametrize(
    "name", ["key_id", "output_tokens", "content_type", "payload_bytes", "monkey", "keys_read", "task_id"]
)
def test_harmless_names_that_look_alike_are_kept(name: str) -> None:
    assert hidden(**{name: 3}) == {name: 3}


def test_endless_nesting_ends() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert HIDDEN in str(hidden(value=endless))


def test_text_without_secrets_stays_as_it_is() -> None:
    text = "task 018bcfe5-6800-8000 in paid_stream at http://127.0.0.1:8080/v1?after=1-2 (a@b.example)"
    assert hide_in_text(text) == text


@pytest.mark.parametrize("scheme", ["redis", "-x+tls", "9p", ""])
def test_a_password_in_an_address_is_masked_whatever_its_scheme(scheme: str) -> None:
    assert mask(f"{scheme}://user:hunter2@db:1") == f"{scheme}://{HIDDEN}@db:1"


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "a.",
            "a-",
            "sk-a.",
            "a://",
            "redis://a:b",
            "://a:",
            "fl_a_.",
            "fl_" + "a_" * 31 + ".",
            "flw_",
            "sk-",
        ),
        *("bearer ", "bearer" + " " * 50, "basic\t", "?key", "&token=", '"', "x"),
    ],
)
def test_a_text_is_searched_in_time_that_grows_with_its_length_only(unit: str) -> None:
    """A megabyte within the time limit of a test; what backtracks took 10 s for 40 kB, and would take an hour and a half."""
    mask(unit * (1_000_000 // len(unit)))


def test_of_a_long_text_the_ends_are_kept_without_a_half_of_a_secret() -> None:
    for before in range(80):
        text = " " * before + f"{KEY} redis://u:hunter2@db ?token=hunter2 " * 2000
        shown = hide_in_text(text)
        assert len(shown) <= MAX_TEXT + 100
        assert "AAAA" not in shown
        assert "hunter2" not in shown
        assert f"[{len(text)} characters in all]" in shown


def test_of_a_long_text_without_spaces_nothing_is_shown() -> None:
    assert hide_in_text("a" * 40_000).strip(" …") == "[40000 characters in all]"
