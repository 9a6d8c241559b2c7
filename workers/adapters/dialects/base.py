"""The interface of API formats."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fairlane.workers.adapters.quirks import Quirks
from fairlane.workers.sdk.values import Delta, Result, Task, Usage
from fairlane.workers.tasktypes import TEXT

Output = bytes | Delta | Usage | Result


class Reader(ABC):
    """Reads one answer: a stream event by event, or a whole one in one call.

    `read` and `whole` raise `UpstreamSaid` for an error that the upstream reports, `NotJsonError` for text that is not JSON,
    `TaskError` for an end that is a failure, and `ValueError` or `RecursionError` for an answer that cannot be read.
    """

    plain_text = False
    """Whether a whole answer is text as it is, and not JSON."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """What the upstream has reported so far."""
        self.done = False
        """Whether it has ended its output."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether an answer that ends here is a whole one."""

    @abstractmethod
    def read(self, event: bytes) -> list[Delta]:
        """Return the output of one event."""

    def end(self) -> list[Delta]:
        """Return the output that was held back until a complete stream is over."""
        return []

    @abstractmethod
    def whole(self, body: bytes) -> list[Output]:
        """Return the usage of a whole answer, and itself as the result; neither if it is not complete."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: the path behind the base URL, the body, and what reads the answer. `binary`: the answer is bytes, unless it
    is JSON."""

    path: str
    body: bytes
    reader: Reader
    stream: bool
    content_type: str = "application/json"
    binary: bool = False


class Dialect(ABC):
    """`task_types`: the types that it serves; `named_types`: those that it serves if the configuration names them; `models_path`,
    after the base URL, lists the models."""

    task_types: tuple[str, ...] = TEXT[:1]
    named_types: tuple[str, ...] = ()
    models_path: str

    @abstractmethod
    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers of each request."""

    @abstractmethod
    def call(self, task: Task, model: str, *, quirks: Quirks, now: float) -> Call:
        """Return the request for a task, for this model of the upstream; its members are sent as its
        `quirks` say. `now` in seconds since 1970. Raise `TaskError` (BAD_REQUEST) for a task that has no form here."""
