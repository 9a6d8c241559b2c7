"""Log lines on stderr, ours and those of libraries in one form, JSON or human, without secrets and prompts.

Secrets are masked twice: values by the names of their fields, and whatever looks like a secret in texts, including tracebacks and
messages of libraries.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["auto", "json", "human"]

HIDDEN = "[hidden]"

_HIDDEN_WORDS = frozenset(
    {
        *("key", "token", "secret", "password", "authorization", "cookie"),
        *("payload", "prompt", "messages", "content", "body", "delta"),
    }
)
_HARMLESS = frozenset(
    {"key_id", "content_type", "content_length", "payload_bytes", "body_bytes", "caller_key_id"}
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

_SECRETS = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s++)[^\s\"',;]+"
    r"|\bflw?_[A-Za-z0-9._-]{1,64}_[A-Za-z0-9_-]{20,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    r"|(?P<url>://)[^\s/@\"']*+@"
    r"|(?P<query>[?&](?:token|key|api_key|access_token|password|secret)=)[^\s&\"']+",
    re.IGNORECASE,
)
"""It takes time in proportion to the text, whatever the text is."""

MAX_TEXT = 32 * 1024
"""Characters of one text that are written; of a longer one its two ends."""
_MAX_DEPTH = 6


def configure_logging(
    log_format: LogFormat = "auto", level: str = "info", stream: TextIO | None = None
) -> None:
    """Send all log lines of this process, structlog's and the standard library's, to `stream` (stderr) in
    one form.

    Replaces what an earlier call configured. `auto` is `human` on a terminal and `json` elsewhere.
    """
    stream = stream or sys.stderr
    human = log_format == "human" or (log_format == "auto" and stream.isatty())
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    after: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if human:
        after += [
            hide_secrets,
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(),
                timestamp_key="time",
                exception_formatter=structlog.dev.plain_traceback,  # without the values of variables
            ),
            _hide_in_line,
        ]
    else:
        after += [structlog.processors.format_exc_info, hide_secrets, structlog.processors.JSONRenderer()]

    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=after, foreign_pre_chain=[*before, structlog.stdlib.ExtraAdder(), _drop_duplicates]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    _quieten_libraries(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _quieten_libraries(level: str) -> None:
    """Quieten libraries. Access logs are off: they hold query strings."""
    logging.getLogger("uvicorn.access").disabled = True
    # at debug level it logs every WebSocket message, and so prompts and answers
    logging.getLogger("uvicorn.error").setLevel(max(logging.getLogger().level, logging.WARNING))
    chatty = logging.WARNING if level != "debug" else logging.INFO
    for name in ("httpx2", "httpcore2", "websockets", "asyncio", "alembic"):
        logging.getLogger(name).setLevel(chatty)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of each invalid form
    logging.captureWarnings(True)


def hide_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A structlog processor: masks values by their names, and what looks like a secret inside texts."""
    return _hide_fields(event, 0)


def _hide_in_line(_: WrappedLogger, __: str, line: Any) -> str:
    """The human form puts tracebacks into the line itself, after the fields were looked at."""
    return hide_in_text(line)


def _drop_duplicates(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """uvicorn gives each message a second time, in colours."""
    event.pop("color_message", None)
    return event


def _hide_fields(fields: MutableMapping[str, Any], depth: int) -> dict[str, Any]:
    return {name: HIDDEN if _is_hidden(name) else _hide(value, depth) for name, value in fields.items()}


def _hide(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return hide_in_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    if depth >= _MAX_DEPTH and isinstance(value, dict | list | tuple | set | frozenset):
        return HIDDEN
    if isinstance(value, dict):
        return _hide_fields({str(name): item for name, item in value.items()}, depth + 1)
    if isinstance(value, list | tuple | set | frozenset):
        return [_hide(item, depth + 1) for item in value]
    if isinstance(value, Exception):
        return hide_in_text(f"{value.__class__.__name__}: {value}")
    return value


def _is_hidden(name: str) -> bool:
    if name in _HARMLESS:
        return False
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words & _HIDDEN_WORDS) or "apikey" in name.lower()


def hide_in_text(text: str) -> str:
    """`text` with keys, bearer tokens, passwords in URLs and secret query parameters masked; shortened when it is long."""
    if len(text) <= MAX_TEXT:
        return mask(text)
    # whole words only: a part of a secret may not look like one
    head = text[: MAX_TEXT // 2].rsplit(None, 1)
    tail = text[-MAX_TEXT // 2 :].split(None, 1)
    left_out = f" … [{len(text)} characters in all] … "
    return mask(head[0] if len(head) == 2 else "") + left_out + mask(tail[1] if len(tail) == 2 else "")


def mask(text: str) -> str:
    """`text`, all of it, with its secrets masked."""

    def masked(found: re.Match[str]) -> str:
        if found["url"]:
            return found["url"] + HIDDEN + "@"
        return (found["scheme"] or found["query"] or "") + HIDDEN

    return _SECRETS.sub(masked, text)
