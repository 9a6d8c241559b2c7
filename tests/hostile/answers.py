"""Reads what a gateway answers out of the bytes of a connection, and says what of it must not be. Pure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.hostile.cast import CANARY

MAX_BODY = 1 << 20
"""More of a body is counted, not kept."""
NEVER = {"INTERNAL", "STORE_LOST", "STORE_UNAVAILABLE", "GATEWAY_STOPPING"}
"""Failure codes that no request may bring about. Others are documented: a full queue, no worker, a worker's own failure."""
PLAIN_400 = (b"Invalid HTTP request received.", b"Failed to open a WebSocket connection: ")
"""How the answers begin that the servers below the gateway give."""
_NATIVE = {"error", "code", "docsUrl", "category", "taskId", "retryAfterMs", "model", "fields", "reason"}
_OPENAI = {"message", "type", "param", "code", "docs_url"}
_ANTHROPIC = {"type", "message", "details"}


@dataclass(slots=True)
class Answer:
    """One answer; `whole` once its end has come."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes = b""
    whole: bool = False

    def code(self) -> str:
        """The failure code of its body; empty when it has none."""
        try:
            body = json.loads(self.body)
            error = body["error"]
            if isinstance(error, dict):
                code = error["details"]["error_code"] if "details" in error else error["code"]
            else:
                code = body.get("code")
        except (ValueError, KeyError, TypeError, AttributeError):
            return ""
        return str(code)


@dataclass
class AnswerReader:
    """The answers of one connection, as their bytes come. `methods`: of the requests, where known (HEAD has no body)."""

    methods: Iterable[str] = ()
    answers: list[Answer] = field(default_factory=list)
    broken: str = ""
    """What was wrong with the bytes; nothing more is read then."""
    _buffer: bytearray = field(default_factory=bytearray)
    _left: int | None = None
    """Bytes of the body that are still to come; None: unknown. Of a chunked one: of the chunk."""
    _mode: str = "head"

    def __post_init__(self) -> None:
        self._methods = iter(self.methods)

    @property
    def begun(self) -> int:
        """Final answers whose head has come."""
        return len(self.answers)

    @property
    def whole(self) -> int:
        """Final answers that have come to their end."""
        return sum(answer.whole for answer in self.answers)

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._buffer += data
        try:
            while not self.broken and self._buffer and self._step():
                pass
        except (ValueError, IndexError) as error:
            self.broken = f"{error}: {bytes(self._buffer[:80])!r}"

    def end(self) -> None:
        """The connection is over: what goes on to its end is whole now."""
        if self._mode == "rest":
            self.answers[-1].whole = True

    def _step(self) -> bool:
        match self._mode:
            case "head":
                return self._head()
            case "body":
                return self._body(last=True)
            case "size":
                return self._chunk_size()
            case "chunk":
                return self._body(last=False)
            case "rest":
                self._keep(bytes(self._buffer))
                self._buffer.clear()
                return False
            case _:
                return self._trailers()

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if not b"HTTP/1.1 ".startswith(self._buffer[:9]):
                raise ValueError("not an answer")
            return False
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        version, status_text, *_ = first.split(b" ", 2)
        if version != b"HTTP/1.1":
            raise ValueError("not HTTP/1.1")
        status = int(status_text)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        del self._buffer[: end + 4]
        if status == 100:
            return True
        answer = Answer(status, headers)
        self.answers.append(answer)
        method = next(self._methods, "")
        if status == 101 or (status < 400 and b"upgrade" in headers):
            self._mode = "rest"
        elif method == "HEAD" or status in (204, 304):
            answer.whole = True
        elif headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._mode = "size"
        elif b"content-length" in headers:
            self._left = int(headers[b"content-length"])
            self._mode = "body"
            if not self._left:
                self._over()
        else:
            self._mode = "rest"
        return True

    def _over(self) -> None:
        self.answers[-1].whole = True
        self._mode = "head"

    def _keep(self, data: bytes) -> None:
        answer = self.answers[-1]
        if len(answer.body) < MAX_BODY:
            answer.body += data

    def _body(self, *, last: bool) -> bool:
        assert self._left is not None
        part = bytes(self._buffer[: self._left])
        del self._buffer[: len(part)]
        self._left -= len(part)
        self._keep(part)
        if self._left:
            return False
        if last:
            self._over()
        else:
            self._mode = "size"
        return True

    def _chunk_size(self) -> bool:
        if self._buffer.startswith(b"\r\n"):  # behind the chunk before
            del self._buffer[:2]
        line, found, _ = self._buffer.partition(b"\r\n")
        if not found:
            return False
        del self._buffer[: len(line) + 2]
        self._left = int(line, 16)
        self._mode = "chunk" if self._left else "trailers"
        return True

    def _trailers(self) -> bool:
        line, found, _ = self._buffer.partition(b"\r\n")
        if not found:
            return False
        del self._buffer[: len(line) + 2]
        if not line:
            self._over()
        return True


def fault_of(answer: Answer, *, framed: bool = True) -> str:
    """What is wrong with an answer, whatever was asked; empty when nothing is. `framed`: its body is certainly its own."""
    if CANARY in answer.body:
        return "somebody else's text"
    if b"Traceback (most recent call last)" in answer.body:
        return "a traceback"
    if answer.status < 400:
        return ""
    if answer.status >= 500 and answer.code() in NEVER:
        return f"{answer.status} {answer.code()}"
    if framed and answer.whole and answer.body and not _is_refusal(answer):
        return f"a {answer.status} of no known shape"
    return ""


def _is_refusal(answer: Answer) -> bool:
    if answer.status == 400 and answer.body.startswith(PLAIN_400):
        return True
    try:
        body: Any = json.loads(answer.body)
    except ValueError:
        return False
    if not isinstance(body, dict):
        return False
    error = body.get("error")
    if isinstance(error, dict) and body.get("type") == "error":
        known = set(body) == {"type", "error", "request_id"} and set(error) == _ANTHROPIC
        return known and isinstance(error["message"], str) and isinstance(error["details"]["error_code"], str)
    if isinstance(error, dict):
        return set(body) == {"error"} and set(error) == _OPENAI and isinstance(error["message"], str)
    sentence = isinstance(error, str) and bool(error)
    handshake = set(body) == {"error"} and answer.status in (401, 403)  # of /ws
    return sentence and (handshake or (set(body) <= _NATIVE and isinstance(body.get("code"), str)))
