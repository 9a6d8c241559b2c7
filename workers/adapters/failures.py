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
| 200 with an error, or neither JSON nor events    | by its words, else UPSTREAM_ERROR | yes |
| 200 without a choice that says something or ends | UPSTREAM_TRUNCATED, UPSTREAM_ERROR | yes |
| 404 that knows no such path (`_NO_PATH`)         | UPSTREAM_ERROR     | no        |
| a model that it does not have, and its caller did not choose | UPSTREAM_ERROR | no |
| no output, silence, no end in time (`clock.py`) | FIRST_TOKEN_TIMEOUT, STREAM_STALLED, TOTAL_TIMEOUT | yes |
| other 4xx                                        | BAD_REQUEST        | no        |
| other 5xx (501, 505, 508, …), 3xx                | UPSTREAM_ERROR     | no        |

Retryable is what another try can fix: the gateway makes it, three in all. 409 is among them because OpenAI's SDKs take it for a
lock that was not free, 520 to 524 because Cloudflare says so of a server that it cannot reach, or that is late; 501 and 505 are
answers that do not change.

The pause that an upstream asks for goes with its failure: one in a header (`retry-after-ms`, `Retry-After`), or, as a body may
quote the request, one in the body (Google's `RetryInfo`) of a failure for too many requests, for a quota, or of a server (5xx). A
failure that blames the request has none. One that says that there were too many requests, and not for how long, is left alone for
a second.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from fairlane.workers.adapters.lenient import NotJsonError, encoded, lenient, number
from fairlane.workers.sdk.errors import TaskError, shorten

BUSY_STATUSES = frozenset({425, 429, 503, 529})
TIMEOUT_STATUSES = frozenset({408, 504, 522, 524})
RETRY_STATUSES = frozenset({409, 500, 502, 520, 521, 523})
"""Also accidents that another try can fix."""
BLAMES_REQUEST = frozenset({"BAD_REQUEST", "CONTEXT_LENGTH", "CONTENT_FILTERED"})
DEFAULT_PAUSE_S = 1.0
"""After a 429 that names no time."""

_CONTEXT_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "1261", "40303"}
)
"""Numbers of four digits are GLM's, here and below; of five, FastChat's."""
_CONTEXT_SENTENCES = re.compile(
    r"maximum context length|context length (?:is )?exceed|exceed\w* (?:the )?(?:\w+ ){0,3}context"
    r"|(?:larger|longer|greater) than (?:the )?(?:\w+ ){0,3}context|prompt is too long|input is too long"
    r"|too many (?:input )?tokens|exceeds the maximum number of tokens|context window|context (?:is )?too long"
    r"|too large to process",
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


class _Kind:
    """A kind of failures: its code, whether to retry, and the statuses, names of errors and words that stand for it."""

    def __init__(
        self, code: str, retry: bool, *, statuses: Collection[int] = (), names: str = "", words: str = ""
    ) -> None:
        self.outcome: tuple[str, bool] = code, retry
        self._statuses = statuses
        self._names = frozenset(names.split())
        self._words = re.compile(words, re.IGNORECASE) if words else None

    def has(self, said: "UpstreamError", status: int | None) -> bool:
        return (
            status in self._statuses
            or not self._names.isdisjoint(said.names)
            or (self._words is not None and self._words.search(said.message) is not None)
        )


_TOO_MANY = _Kind(
    "MODEL_TOO_BUSY",
    True,
    names="rate_limit_exceeded rate_limit_error too_many_requests resource_exhausted 1302 1303 1305 42901 42903",
    words="too many requests|rate.?limit",
)
_ALWAYS = (
    _Kind(
        "CONTENT_FILTERED",
        False,
        names="content_filter content_policy_violation contentfilter data_inspection_failed 1301",
    ),
    _Kind(  # Google's FAILED_PRECONDITION: billing is not enabled; Anthropic's 400 has no name, MiniMax's number is its own
        "UPSTREAM_QUOTA",
        False,
        statuses={402},
        names="insufficient_quota billing_hard_limit_reached insufficient_balance billing_error failed_precondition 1113 1308"
        " 1310",
        words=r"credit balance is too low|insufficient (?:balance|credits?)",
    ),
    _Kind("UPSTREAM_AUTH", False, statuses={401, 403}, names="api_key_invalid"),  # that of Google's 400
    _Kind("MODEL_TOO_BUSY", True, statuses=BUSY_STATUSES),
    _Kind("UPSTREAM_TIMEOUT", True, statuses=TIMEOUT_STATUSES),
    _Kind("UPSTREAM_ERROR", True, statuses=RETRY_STATUSES),
)
_WITHOUT_STATUS = (
    _TOO_MANY,
    _Kind(
        "MODEL_TOO_BUSY",
        True,
        names="overloaded_error overloaded server_overloaded engine_overloaded unavailable_error service_unavailable unavailable",
        words=r"overloaded|(?:is|are|too) busy|at capacity|temporarily unavailable",
    ),
    _Kind("UPSTREAM_TIMEOUT", True, names="timeout timeout_error deadline_exceeded"),
    _Kind(
        "UPSTREAM_AUTH",
        False,
        names="invalid_api_key authentication_error permission_error invalid_authentication unauthenticated"
        " permission_denied 40101 40102 40103",
        words=r"(?:api.?key|token)\b.{0,30}\b(?:expired|invalid|incorrect)"
        r"|(?:invalid|incorrect|expired|missing) (?:api.?key|\w* ?token)|unauthori[sz]ed",
    ),
    _Kind(
        "BAD_REQUEST",
        False,
        names="invalid_request_error invalid_prompt model_not_found not_found_error badrequesterror request_too_large"
        " invalid_argument not_found out_of_range 1210 1211 1212 1213 1214 1215",
    ),
)
_MODEL_CODES = frozenset({"model_not_found", "model_not_exist", "invalid_model", "1211"})
_STATUSES = frozenset({400, 401, 402, 403, 404, 408, 409, 413, 422, 425, 429, *range(500, 600)})
"""What a code in a body can mean as a status; other numbers are names of the upstream's own."""
_INNER = ("error", "errors", "base_resp", "detail", "choices", "x_groq")
"""Where an object has the error itself."""
_SIGNS = (
    *("message", "msg", "detail", "errors"),
    *("error_msg", "error_message", "errorMessage", "error_description"),
)
"""Members that only errors have, among objects without output."""
_MESSAGES = (*_SIGNS, "status_msg", "title", "description", "text", "error")
_CODES = ("code", "status", "status_code", "statusCode", "error_code")
_PAUSES = {"retry_after": 1.0, "retry_after_ms": 0.001}
_PAUSE = re.compile(r"(?:try again|retry) (?:in|after) (\d{1,6}(?:\.\d{1,6})?) ?(ms|s)", re.IGNORECASE)
MAX_LEVELS = 6
MAX_TEXT = 4000
MAX_SHOWN = 300
"""Characters of an answer that is neither JSON nor events."""


class UpstreamSaid(Exception):
    """An answer that began as a success is an error of the upstream's, in its own words."""

    def __init__(self, body: bytes) -> None:
        super().__init__("the upstream reports an error")
        self.body = body


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
    names: frozenset[str] = frozenset()
    status: int | None = None
    pause_s: float | None = None
    """How long to wait, if the body has it."""
    is_report: bool = True
    """Whether it is JSON with a message; else the message is its first bytes."""


def is_error(found: dict[str, Any], *, answers: bool) -> bool:
    """Return whether an object of an answer reports an error. `answers`: it has output, so that only clear signs count."""
    if found.get("error") or found.get("object") == "error" or found.get("error_code"):
        return True
    if answers:
        return False
    status = found.get("base_resp")  # MiniMax's
    return any(found.get(name) for name in _SIGNS) or bool(
        isinstance(status, dict) and status.get("status_code")
    )


def read_error(body: bytes) -> UpstreamError:
    """Understand an error body: JSON of any of the forms that servers use, or text."""
    text = _one_line(body[:MAX_TEXT].decode(errors="replace"))
    try:
        said = _from_value(lenient(body))
    except (NotJsonError, RecursionError):
        said = UpstreamError("")
    return said if said.message else replace(said, message=text, is_report=False)


def from_status(status: int, body: bytes, pause_s: float | None, asked: CallTarget) -> TaskError:
    """Return the failure for an answer that is not a success."""
    return _failure(read_error(body), status, pause_s, asked, f"The upstream answered {status}")


def from_answer(body: bytes, content_type: str, pause_s: float | None, asked: CallTarget) -> TaskError:
    """Return the failure for an answer of status 200 that is an error, or cannot be read; its `code` may be a status."""
    said = read_error(body)
    sentence = "The upstream failed" if said.status is None else f"The upstream answered {said.status}"
    if not said.is_report:
        sentence = f"The upstream sent no answer ({content_type or 'no content type'})"
    return _failure(said, said.status, pause_s, asked, sentence)


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
        return TaskError("UPSTREAM_TRUNCATED", f"The upstream's answer stopped midway ({sentence}).")
    if isinstance(error, httpx2.ConnectTimeout):
        return TaskError("CONNECT_TIMEOUT", f"The upstream accepted no connection in time ({sentence}).")
    return TaskError("UPSTREAM_ERROR", f"The upstream cannot be reached ({sentence}).")


def unreadable(what: str) -> TaskError:
    """Return the failure for an unreadable answer."""
    return TaskError("JSON_PARSE_FAILED", f"The upstream's answer is invalid: {what}.")


class UpstreamFailure(TaskError):
    """A failure that an upstream reported: `said` is its message and the names of the error."""

    said: str = ""


def _failure(
    said: UpstreamError, status: int | None, pause_s: float | None, asked: CallTarget, sentence: str
) -> TaskError:
    code, retryable = _classify(said, status)
    misdirected = _misdirected(said, status)
    no_model = code == "BAD_REQUEST" and not misdirected and (status == 404 or said.names & _MODEL_CODES)
    if no_model and not asked.callers_choice:
        code = "UPSTREAM_ERROR"
    if code in BLAMES_REQUEST:
        pause_s = None
    elif pause_s is None and (code in ("MODEL_TOO_BUSY", "UPSTREAM_QUOTA") or (status or 0) >= 500):
        pause_s = said.pause_s
    too_many = status == 429 or (status is None and _TOO_MANY.has(said, None))
    if pause_s is None and retryable and too_many:
        pause_s = DEFAULT_PAUSE_S
    message = said.message.replace(asked.secret, "***") if asked.secret else said.message
    if not said.is_report and status is None:
        message = shorten(message, MAX_SHOWN)
    if misdirected:
        sentence = f"The worker's base URL may be wrong (most end with /v1): {asked.url} answered {status}"
    elif code == "UPSTREAM_ERROR" and no_model:
        answered = "refused it" if status is None else f"answered {status}"
        sentence = f"The worker offers a model that its upstream may not have: asked for {asked.model}, {asked.url} {answered}"
    failure = UpstreamFailure(
        code,
        shorten(f"{sentence}: {message}" if message else f"{sentence}."),
        retryable=retryable,
        http_status=status or 200,
        retry_after_ms=None if pause_s is None else round(pause_s * 1000),
    )
    failure.said = " ".join((said.message, *said.names))
    return failure


def _classify(said: UpstreamError, status: int | None) -> tuple[str, bool]:
    """1. the prompt's length, also beyond a limit per minute; 2. filters, quotas, the status; 3. without one, names and words."""
    may_be_length = status is None or 400 <= status <= 500
    if may_be_length and status not in BUSY_STATUSES | TIMEOUT_STATUSES:  # 1
        if said.names & _CONTEXT_CODES or _CONTEXT_SENTENCES.search(said.message):
            return "CONTEXT_LENGTH", False
    if status in (None, 413, 429) and _never_fits(said.message):
        return "CONTEXT_LENGTH", False
    for kind in _ALWAYS + _WITHOUT_STATUS if status is None else _ALWAYS:  # 2, 3
        if kind.has(said, status):
            return kind.outcome
    if status is None:
        return "UPSTREAM_ERROR", True
    blames_request = 400 <= status < 500 and not _misdirected(said, status)
    return ("BAD_REQUEST" if blames_request else "UPSTREAM_ERROR"), False


def _never_fits(message: str) -> bool:
    found = _ABOVE_LIMIT.search(message)
    if found is None:
        return False
    limit, requested = (number(digits.replace(",", "")) for digits in found.groups())
    return limit is not None and requested is not None and requested > limit


def _misdirected(said: UpstreamError, status: int | None) -> bool:
    return status == 404 and _NO_PATH.search(said.message) is not None


def _from_value(value: Any) -> UpstreamError:
    if isinstance(value, str):
        return UpstreamError(_one_line(value))
    levels: list[dict[str, Any]] = []  # from the inside out
    while value and isinstance(value, dict | list) and len(levels) < MAX_LEVELS:
        if isinstance(value, dict):
            levels.insert(0, value)
            value = next(
                (value[name] for name in _INNER if isinstance(value.get(name), dict | list)), _raw(value)
            )
        elif (
            isinstance(value[0], dict) and "loc" in value[0]
        ):  # FastAPI's list of what is wrong with a request
            break
        else:
            value = value[0]
    messages = [value, *(level.get(name) for level in levels for name in _MESSAGES)]
    message = next((text for text in messages if text and not isinstance(text, dict)), "")
    if not isinstance(message, str):
        message = bytes(encoded(message)).decode()
    statuses, names, pauses = [], [], []
    for level in levels:
        listed = level["details"][:20] if isinstance(level.get("details"), list) else []
        details = [one for one in listed if isinstance(one, dict)]
        inner = level["innererror"] if isinstance(level.get("innererror"), dict) else {}
        names += [level.get(name) for name in (*_CODES, "type", "error_type", "param", "error")]
        names += [inner.get("code"), *(one.get("reason") for one in details)]
        statuses += [_status(level.get(name)) for name in _CODES]
        statuses += [529] if level.get("type") == "overloaded_error" else []
        pauses += [_pause(one.get("retryDelay")) for one in details]
        pauses += [
            pause * unit for name, unit in _PAUSES.items() if (pause := number(level.get(name))) is not None
        ]
    asked = [pause for pause in pauses if pause is not None]
    if not asked and (found := _PAUSE.search(message)):
        asked.append(float(found[1]) * (0.001 if found[2].lower() == "ms" else 1.0))
    return UpstreamError(
        _one_line(message),
        frozenset(str(name).lower() for name in names if isinstance(name, str | int)),
        next((status for status in statuses if status), None),
        max(asked, default=None),
    )


def _raw(found: dict[str, Any]) -> Any:
    """Return what another server said behind this one (OpenRouter's `metadata.raw`): JSON, or a text."""
    metadata = found.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    try:
        return lenient(raw.encode(errors="replace")) if isinstance(raw, str) else raw
    except NotJsonError:
        return raw


def _pause(delay: Any) -> float | None:
    """Seconds of a duration as Google writes it: `22s`, `1.5s`."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s", delay) if isinstance(delay, str) else None
    return None if found is None else float(found[1])


def _status(code: Any) -> int | None:
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
        code = int(code)
    return code if isinstance(code, int) and code in _STATUSES else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
