"""What an upstream's refusals and accidents mean, as failure codes. Pure.

| upstream                                         | code               | retryable |
|--------------------------------------------------|--------------------|-----------|
| the prompt is too long (any status, see below)   | CONTEXT_LENGTH     | no        |
| 413, 429 for one request above a limit per minute | CONTEXT_LENGTH    | no        |
| a content filter's refusal                       | CONTENT_FILTERED   | no        |
| 402, `insufficient_quota`, GLM's 1113, 1308, 1310, Anthropic's credit, Google's `FAILED_PRECONDITION` | UPSTREAM_QUOTA | no |
| 401, 403, Google's `API_KEY_INVALID`             | UPSTREAM_AUTH      | no        |
| 425, 429, 503, 529, `overloaded`                 | MODEL_TOO_BUSY     | yes       |
| 408, 504, 522, 524, `timeout`: its own limits    | UPSTREAM_TIMEOUT   | yes       |
| no connection in time, TLS included              | CONNECT_TIMEOUT    | yes       |
| 409, 500, 502, 520, 521, 523, a refused or broken connection | UPSTREAM_ERROR | yes |
| 404 that knows no such path (`_NO_PATH`)         | UPSTREAM_ERROR     | no        |
| a model that it does not have, and its caller did not choose | UPSTREAM_ERROR | no |
| no output, silence, no end in time (`clock.py`) | FIRST_TOKEN_TIMEOUT, STREAM_STALLED, TOTAL_TIMEOUT | yes |
| other 4xx                                        | BAD_REQUEST        | no        |
| other 5xx (501, 505, 508, …), 3xx                | UPSTREAM_ERROR     | no        |

Retryable is what another try can fix: the gateway makes it, three in all. 409 is among them because OpenAI's SDKs take it for a
lock that was not free, 520 to 524 because Cloudflare says so of a server that it cannot reach, or that is late; 501 and 505 are
answers that do not change.

The pause that an upstream asks for (`retry-after-ms`, `Retry-After`, Google's `RetryInfo`) goes with its failure. One that says
that there were too many requests, and not for how long, is left alone for a second.
"""

import re
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec

from fairlane.workers.sdk.errors import TaskError, shorten

BUSY_STATUSES = frozenset({425, 429, 503, 529})
TIMEOUT_STATUSES = frozenset({408, 504, 522, 524})
RETRY_STATUSES = frozenset({409, 500, 502, 520, 521, 523})
"""Also accidents that another try can fix."""
DEFAULT_PAUSE_S = 1.0
"""After a 429 that names no time."""

_CONTEXT_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "1261"}
)
_CONTEXT_SENTENCES = re.compile(
    r"maximum context length|context length (?:is )?exceed|exceed\w* (?:the )?(?:\w+ ){0,3}context"
    r"|(?:larger|longer|greater) than (?:the )?(?:\w+ ){0,3}context|prompt is too long|input is too long"
    r"|too many (?:input )?tokens|exceeds the maximum number of tokens|context window|too large to process",
    re.IGNORECASE,
)
_ABOVE_LIMIT = re.compile(r"\blimit:? ([0-9][0-9,]*)\b.{0,40}?\brequested:? ([0-9][0-9,]*)\b", re.IGNORECASE)
"""How OpenAI and Groq say what a limit is and what a request would take of it. One that takes more than all of it never fits, and
is no reason for others to wait."""
_NO_PATH = re.compile(
    r"^(?:404\W*)?(?:page |file )?(?:not found)?\W*$|^<|invalid url|cannot post|unexpected endpoint|there is no post",
    re.IGNORECASE,
)
"""How servers say that they have no such path (FastAPI, Go, llama.cpp, nginx, OpenAI, Express, LM Studio, Fairlane): the base URL
is wrong, not the request."""
_FILTER_CODES = frozenset(
    {"content_filter", "content_policy_violation", "contentfilter", "data_inspection_failed", "1301"}
)
"""Numbers are GLM's, here and below."""
_RATE_CODES = frozenset(
    {
        *("rate_limit_exceeded", "rate_limit_error", "too_many_requests", "resource_exhausted"),
        *("1302", "1303", "1305"),
    }
)
_BUSY_CODES = _RATE_CODES | {
    "overloaded_error",
    "overloaded",
    "server_overloaded",
    "engine_overloaded",
    "unavailable_error",
    "service_unavailable",
    "unavailable",
}
_TIMEOUT_CODES = frozenset({"timeout", "timeout_error", "deadline_exceeded"})
_QUOTA_CODES = frozenset(
    {
        *("insufficient_quota", "billing_hard_limit_reached", "insufficient_balance", "billing_error"),
        *("failed_precondition", "1113", "1308", "1310"),
    }
)
"""Google's FAILED_PRECONDITION: billing is not enabled where the free tier does not hold."""
_NO_CREDIT = re.compile(r"credit balance is too low", re.IGNORECASE)
"""Anthropic's 400 has no name for it."""
_AUTH_CODES = frozenset(
    {
        *("invalid_api_key", "authentication_error", "permission_error", "invalid_authentication"),
        *("unauthenticated", "permission_denied"),
    }
)
_KEY_CODES = frozenset({"api_key_invalid"})
"""Of Google's 400 for a key that is none."""
_REFUSED_CODES = frozenset(
    {
        *(
            "invalid_request_error",
            "invalid_prompt",
            "model_not_found",
            "not_found_error",
            "badrequesterror",
            "request_too_large",
        ),
        *("invalid_argument", "not_found", "out_of_range", "1210", "1211", "1212", "1213", "1214", "1215"),
    }
)


_MODEL_CODES = frozenset({"model_not_found", "model_not_exist", "invalid_model", "1211"})


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The target of a call: the call's address, without credentials; the model's name there; whether the caller chose that
    name, through a worker of any model. `secret` is kept out of sentences.
    """

    url: str
    model: str
    callers_choice: bool = False
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """An error body: its message, the names of the error (in lower case), and the status that it stands for."""

    message: str
    names: frozenset[str]
    status: int | None = None
    pause_s: float | None = None
    """How long to wait, if the body has it."""


def read_error(body: bytes | msgspec.Raw) -> UpstreamError:
    """Understand an error body: `{"error": {…}}`, `{"error": "…"}`, `{"message"}`, `{"detail"}`, a list of one, or text."""
    raw = bytes(body)
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return UpstreamError(_one_line(raw[:4000].decode(errors="replace")), frozenset())
    return _from_value(value)


def from_status(status: int, body: bytes, pause_s: float | None, asked: CallTarget) -> TaskError:
    """The failure for an answer that is not a success."""
    return _failure(read_error(body), status, pause_s, asked)


def from_stream(error: msgspec.Raw, asked: CallTarget) -> TaskError:
    """The failure for an `error` object inside a successful answer; its own `code` may be a status."""
    said = read_error(error)
    return _failure(said, said.status, None, asked)


def what_is_wrong(status: int, body: bytes) -> str:
    """Why an upstream that answers so to a question for its models does not work; '' when it does, or need not answer that."""
    if status < 500 or status not in RETRY_STATUSES | TIMEOUT_STATUSES | BUSY_STATUSES:
        return ""
    message = read_error(body).message
    return f"answered {status}: {message}" if message else f"answered {status}"


def from_transport(error: httpx2.HTTPError, *, streaming: bool) -> TaskError:
    """The failure for a broken or refused connection; `streaming`: after the answer had begun."""
    sentence = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, httpx2.UnsupportedProtocol):
        return TaskError("UPSTREAM_ERROR", f"The upstream's address is wrong ({sentence}).", retryable=False)
    if isinstance(error, httpx2.DecodingError):
        return TaskError("JSON_PARSE_FAILED", f"The upstream's answer cannot be decoded ({sentence}).")
    if streaming:
        return TaskError("UPSTREAM_TRUNCATED", f"The upstream's answer broke off ({sentence}).")
    if isinstance(error, httpx2.ConnectTimeout):
        return TaskError("CONNECT_TIMEOUT", f"The upstream took no connection in time ({sentence}).")
    return TaskError("UPSTREAM_ERROR", f"The upstream cannot be reached ({sentence}).")


def unreadable(what: str) -> TaskError:
    """Return the failure for an unreadable answer."""
    return TaskError("JSON_PARSE_FAILED", f"The upstream's answer is not what it should be: {what}.")


def _failure(said: UpstreamError, status: int | None, pause_s: float | None, asked: CallTarget) -> TaskError:
    code, retryable = _classify(said, status)
    misdirected = _misdirected(said, status)
    no_model = code == "BAD_REQUEST" and not misdirected and (status == 404 or said.names & _MODEL_CODES)
    if no_model and not asked.callers_choice:
        code = "UPSTREAM_ERROR"
    too_many = status == 429 or (status is None and said.names & _RATE_CODES)
    pause_s = said.pause_s if pause_s is None else pause_s
    if pause_s is None and retryable and too_many:
        pause_s = DEFAULT_PAUSE_S
    message = said.message.replace(asked.secret, "***") if asked.secret else said.message
    sentence = "The upstream failed" if status is None else f"The upstream answered {status}"
    if misdirected:
        sentence = f"The worker's base URL may be wrong (most end with /v1): {asked.url} answered {status}"
    elif code == "UPSTREAM_ERROR" and no_model:
        answered = "refused it" if status is None else f"answered {status}"
        sentence = f"The worker offers a model that its upstream may not have: asked for {asked.model}, {asked.url} {answered}"
    return TaskError(
        code,
        shorten(f"{sentence}: {message}" if message else f"{sentence}."),
        retryable=retryable,
        http_status=status,
        retry_after_ms=None if pause_s is None else round(pause_s * 1000),
    )


def _classify(said: UpstreamError, status: int | None) -> tuple[str, bool]:
    """1. the prompt's length, also beyond a limit per minute; 2. filters; 3. the status; 4. without one, the error's name."""
    may_be_length = status is None or 400 <= status < 500 or status == 500
    if (
        status not in BUSY_STATUSES | TIMEOUT_STATUSES
        and may_be_length
        and (  # 1
            said.names & _CONTEXT_CODES or _CONTEXT_SENTENCES.search(said.message)
        )
    ):
        return "CONTEXT_LENGTH", False
    if status in (None, 413, 429) and _never_fits(said.message):
        return "CONTEXT_LENGTH", False
    if said.names & _FILTER_CODES:  # 2
        return "CONTENT_FILTERED", False
    if status == 402 or said.names & _QUOTA_CODES or _NO_CREDIT.search(said.message):  # 3
        return "UPSTREAM_QUOTA", False
    if status in (401, 403) or said.names & _KEY_CODES:
        return "UPSTREAM_AUTH", False
    if status in BUSY_STATUSES:
        return "MODEL_TOO_BUSY", True
    if status in TIMEOUT_STATUSES:
        return "UPSTREAM_TIMEOUT", True
    if status in RETRY_STATUSES:
        return "UPSTREAM_ERROR", True
    if status is not None:
        blames_request = 400 <= status < 500 and not _misdirected(said, status)
        return ("BAD_REQUEST" if blames_request else "UPSTREAM_ERROR"), False
    if said.names & _BUSY_CODES:  # 4
        return "MODEL_TOO_BUSY", True
    if said.names & _TIMEOUT_CODES:
        return "UPSTREAM_TIMEOUT", True
    if said.names & _AUTH_CODES:
        return "UPSTREAM_AUTH", False
    if said.names & _REFUSED_CODES:
        return "BAD_REQUEST", False
    return "UPSTREAM_ERROR", True


def _never_fits(message: str) -> bool:
    found = _ABOVE_LIMIT.search(message)
    return found is not None and int(found[2].replace(",", "")) > int(found[1].replace(",", ""))


def _misdirected(said: UpstreamError, status: int | None) -> bool:
    return status == 404 and _NO_PATH.search(said.message) is not None


def _from_value(value: Any) -> UpstreamError:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and isinstance(value.get("error"), dict | str):
        value = value["error"]
    if not isinstance(value, dict):
        return UpstreamError(_one_line(value if isinstance(value, str) else ""), frozenset())
    message = next((value[k] for k in ("message", "detail", "error") if value.get(k)), "")
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    names = [value.get(k) for k in ("code", "type", "param", "status")]
    status = _status(value.get("code")) or (529 if value.get("type") == "overloaded_error" else None)
    inner = value.get("innererror")
    if isinstance(inner, dict):
        names.append(inner.get("code"))
    details = value.get("details")
    listed = [one for one in details[:20] if isinstance(one, dict)] if isinstance(details, list) else []
    names += [one.get("reason") for one in listed]
    pauses = [pause for one in listed if (pause := _pause(one.get("retryDelay"))) is not None]
    return UpstreamError(
        _one_line(message),
        frozenset(str(name).lower() for name in names if isinstance(name, str | int)),
        status,
        max(pauses, default=None),
    )


def _pause(delay: Any) -> float | None:
    """Seconds of a duration as Google writes it: `22s`, `1.5s`."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s", delay) if isinstance(delay, str) else None
    return None if found is None else float(found[1])


def _status(code: Any) -> int | None:
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
