"""What a signed token fixes of a task: applied where its holder says nothing, refused where they say something else. Pure."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from fairlane.gateway.accounts.tokens import TokenForbids
from fairlane.gateway.calls.bodies import OVERSIZED, Members, value_of
from fairlane.gateway.calls.outputs import BOUNDS, CHOICES, MAX_CHOICES, numbers_of, prompts_in
from fairlane.gateway.errors import ApiError
from fairlane.streaming.jsontext import kind_of


def fixed(name: str, said: Any, claimed: Any) -> Any:
    """What holds of something that the token may fix. Raises TokenForbids."""
    if claimed is None or said is None:
        return claimed if said is None else said
    if said != claimed:
        raise TokenForbids(f"The token fixes {name}: it is {claimed}", name)
    return said


def at_most(name: str, said: Any, most: int | None) -> Any:
    """What holds of something that the token may bound. What is no number is told elsewhere. Raises TokenForbids."""
    if most is None or said is None:
        return most if said is None else said
    if isinstance(said, int | float) and said > most:
        raise TokenForbids(f"The token allows {name} {most} at most", name)
    return said


class Bound(NamedTuple):
    """How much output somebody allows a request."""

    name: str
    """The member that says it to the model, where the request has none."""
    most: int
    """Tokens of all answers together."""
    whose: str
    """Who allows no more: `The token`, `The route`."""
    refuses: Callable[[str, str], ApiError]
    """Makes the answer to who asks for more: of a sentence and the member."""


def hold_output(bound: Bound, fields: Members) -> None:
    """Let the members of a body bound its output so, under the name that is given: all choices together have no more. Raises what
    `bound` refuses with."""
    name, most, whose, refuses = bound
    choices = 1
    for said, number in numbers_of(fields, CHOICES).items():
        if number is None or number > min(MAX_CHOICES, most):
            limit = min(MAX_CHOICES, most)
            raise refuses(f"{whose} bounds the output: {said} must be a number from 1 to {limit}", said)
        choices = max(choices, number)
    if "prompt" in fields and value_of(fields, "prompt") is OVERSIZED and kind_of(fields["prompt"]) == "[":
        raise refuses(f"{whose} bounds the output: a long prompt must be a text, not a list", "prompt")
    choices *= prompts_in(fields) or 1
    if choices > most:
        raise refuses(f"{whose} allows {most} tokens of output: fewer than there are answers", "prompt")
    least = each = most // choices
    for said, number in numbers_of(fields, BOUNDS).items():
        if number is None or number > each:
            raise refuses(f"{whose} allows {most} tokens of output: {said} may be {each} at most", said)
        least = min(least, number)
    for member in BOUNDS:
        fields.pop(member, None)
    fields[name] = Raw(b"%d" % least)


def object_of(fields: Members, without: tuple[str, ...] = ()) -> bytes:
    """The members as a JSON object, but for some: values byte for byte, and each name once."""
    parts: list[bytes | memoryview] = []
    for name, value in fields.items():
        if name not in without:
            parts += (b",", msgspec.json.encode(name), b":", memoryview(value))
    parts[:1] = (b"{",)
    parts.append(b"}")
    return b"".join(parts)  # copied once: they may be long
