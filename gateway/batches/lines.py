"""What stands in a line of a batch: a request with an id of its caller's. Pure."""

import hashlib
from typing import Final, NamedTuple

from msgspec import Raw

from fairlane.gateway.calls.bodies import Members, value_of
from fairlane.gateway.calls.intake import read_model
from fairlane.gateway.errors import ApiError
from fairlane.streaming.jsontext import kind_of

METHOD: Final = "POST"
MAX_CUSTOM_ID = 256
"""Characters."""
MOST_ERRORS = 100
"""Of a file that are told: who mends them may try again."""
AROUND_BODY = 4096
"""Bytes that a line may have beside its body."""


class Problem(NamedTuple):
    """What is wrong with a file, or with a line of it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Asked(NamedTuple):
    """What a line asks for."""

    custom_id: str
    body: Raw


class Unfit(Exception):
    """A line that is none of a batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def at(self, line: int) -> Problem:
        """The same as it is told."""
        return Problem(self.code, self.message, line, self.param)


def not_json(error: ApiError) -> Unfit:
    """A line that is no JSON object, of which `parse_object` says why."""
    return Unfit("invalid_json_line", error.message)


def read_line(fields: Members, endpoint: str) -> Asked:
    """What a line of these members asks for, of a batch over `endpoint`. Raises Unfit."""
    custom_id = _text(fields, "custom_id")
    if not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        sentence = f"custom_id must have 1 to {MAX_CUSTOM_ID} characters"
        raise Unfit("invalid_custom_id", sentence, "custom_id")
    method = _text(fields, "method")
    if method != METHOD:
        raise Unfit("invalid_method", f"method must be {METHOD}, not {method[:20]!r}", "method")
    url = _text(fields, "url")
    if url != endpoint:
        sentence = f"url must be the batch's endpoint, {endpoint}, not {url[:100]!r}"
        raise Unfit("mismatched_endpoint", sentence, "url")
    body = fields.get("body")
    if body is None or kind_of(body) != "{":
        raise Unfit("invalid_body", "body must be the request's body, a JSON object", "body")
    return Asked(custom_id, body)


def model_in(fields: Members) -> str:
    """The model that a body of these members names; '' of none."""
    try:
        return read_model(fields, "")
    except ApiError:
        return ""


def _text(fields: Members, name: str) -> str:
    if name not in fields:
        raise Unfit("missing_required_parameter", f"{name} is missing", name)
    try:
        value = value_of(fields, name)
    except ApiError as error:
        raise Unfit("invalid_json_line", error.message, name) from None
    if not isinstance(value, str):
        raise Unfit("invalid_type", f"{name} must be a string", name)
    return value


class Findings:
    """What is found in a file, line by line: how many requests it holds, and what is wrong."""

    def __init__(self, most_lines: int) -> None:
        self._most_lines = most_lines
        self._seen: dict[bytes, int] = {}
        self.total = 0
        self.problems: list[Problem] = []
        self.model = ""
        """The one that the first line names."""

    @property
    def full(self) -> bool:
        """Whether nothing more needs to be looked at."""
        return len(self.problems) >= MOST_ERRORS or self.total > self._most_lines

    def wrong(self, problem: Problem) -> None:
        """Note what is wrong."""
        self.problems.append(problem)

    def add(self, number: int, asked: Asked) -> None:
        """Count a request."""
        self.total += 1
        if self.total > self._most_lines:
            sentence = f"A batch may have at most {self._most_lines} requests: this line is one more"
            self.wrong(Problem("too_many_lines", sentence, number))
            return
        digest = hashlib.blake2b(asked.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            sentence = f"The custom_id {asked.custom_id[:64]!r} was used in line {first} already"
            self.wrong(Problem("duplicate_custom_id", sentence, number, "custom_id"))

    def end(self) -> None:
        """The whole file was looked at."""
        if not self.total and not self.problems:
            self.wrong(Problem("empty_file", "The file holds no request"))
