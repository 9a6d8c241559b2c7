"""The interface of API formats."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlane.workers.adapters.quirks import Quirks
from fairlane.workers.sdk.values import Delta, Result, Task, Usage

Output = bytes | Delta | Usage | Result


class Reader(Protocol):
    """Reads one answer: a stream event by event, or a whole one in one call.

    `read` and `whole` raise `StreamError` for an error object of the upstream's, `TaskError` for an end that is a failure, and
    `ValueError` or `RecursionError` for what cannot be read.
    """

    usage: Usage | None
    """What the upstream has reported so far."""
    done: bool
    """Whether it has ended its output."""

    @property
    def complete(self) -> bool:
        """Whether a stream that ends here is a whole one."""
        ...

    def read(self, event: bytes) -> Sequence[Delta]:
        """The output of one event."""
        ...

    def last(self) -> Delta | None:
        """Return what to report when the stream is over."""
        ...

    def whole(self, body: bytes) -> list[Output]:
        """A complete answer: its usage, and itself as the result."""
        ...


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


class Dialect(Protocol):
    """`task_types`: the types that it serves; `named_types`: those that it serves if the configuration names them; `models_path`,
    after the base URL, lists the models."""

    @property
    def task_types(self) -> tuple[str, ...]: ...

    @property
    def named_types(self) -> tuple[str, ...]: ...

    @property
    def models_path(self) -> str: ...

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Those of each request."""
        ...

    def call(self, task: Task, model: str, *, quirks: Quirks, now: float) -> Call:
        """Return the request for a task, for this model of the upstream; its members are sent as its
        `quirks` say. `now` in seconds since 1970. Raise `TaskError` (BAD_REQUEST) for a task that has no form here."""
        ...
