"""One of OpenAI's Responses requests as a chat request. Pure. What goes where is told in docs/responses.md."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fairlane.gateway.calls.bodies import Members

MOST_BYTES = 16 << 20
"""Of a chat request, if nothing is said."""


class Wishes(NamedTuple):
    """What a request says of keeping, and of what was kept: to be looked up before it can be read."""

    store: bool | None
    """None: nothing."""
    background: bool
    previous: str | None
    """`previous_response_id`."""
    references: tuple[str, ...]
    """Ids of items of earlier responses that its input refers to (`item_reference`), each once."""


class Asked(NamedTuple):
    """What a Responses request asks for."""

    fields: Members
    """The chat request's members."""
    payload: bytes
    """The same as a body."""
    echo: bytes
    """What the response object repeats of its request, one line of JSON: an object, which the views are given."""
    input_items: bytes
    """The input as a list of items, one line of JSON: without the history, references as what they mean, ids only where the
    caller said some."""


def wishes_of(fields: Members) -> Wishes:
    """What is to be looked up for a request of these members. Raises ApiError(400)."""
    raise NotImplementedError


def chat_of(fields: Members, **options: object) -> Asked:
    """The chat request that a Responses request of these members is, see `chat_steps`."""
    raise NotImplementedError


def chat_steps(
    fields: Members,
    *,
    stream: bool,
    store: bool = False,
    most: int = MOST_BYTES,
    history: Sequence[bytes] = (),
    known: Mapping[str, bytes] | None = None,
) -> Iterator[Asked | None]:
    """The chat request of a Responses request, in steps, between which others may run: of a large request each takes a part of
    its time. The last one yields it.

    `store`: whether the response is kept, whatever the request says. `history`: items that come before its input, of
    `previous_response_id`: those of its input and of its output, oldest first. `known`: items by the ids that `references` names.
    Raises ApiError: 400 that names what cannot be said, 413 for more than `most` bytes.
    """
    raise NotImplementedError
