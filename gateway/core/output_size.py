"""How many output tokens a body requests, and the limits that tokens and routes set on them. Pure.

Credits are reserved for what the body requests and settled by usage: output beyond that is charged when the task ends.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Raw

from fairlane.gateway.core.bodies import OVERSIZED, RawObject, value_of
from fairlane.gateway.errors import ApiError, TokenForbids
from fairlane.streaming.jsontext import kind_of

MAX_CHOICES = 128
MAX_OUTPUT_TOKENS = 10_000_000
"""Tokens of one answer; a larger number is invalid."""
BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Members that bound an answer, in tokens: OpenAI's and Anthropic's names."""
_FILE_REFERENCE = re.compile(
    rb'(?i)"(file_?ids?|vector_?store_?ids?|file_?uri|[a-z_]{0,20}\\u00[2-7][0-9a-f][a-z0-9_\\]{0,99})"\s*:\s*["\[]'
)
"""A member that names files at a provider, or whose name hides behind escapes."""
CHOICES = ("n", "best_of")
"""Members that multiply the answers."""


class OutputSize(NamedTuple):
    """The output that a body requests."""

    most: int
    """Tokens of all its answers together; 0: the body sets no valid bound."""
    answers: int
    """Number of answers, as far as the body shows it."""


ONE_ANSWER = OutputSize(0, 1)
"""A body that says nothing about it."""
SIZES = frozenset({*BOUNDS, *CHOICES, "prompt"})
"""The members that say something about it."""


def numbers_of(fields: RawObject, names: tuple[str, ...]) -> dict[str, int | None]:
    """Return the members of these names that are not null; None as the value of one that is no number from 1 to the maximum."""
    values = {name: value_of(fields, name) for name in names if name in fields}
    return {
        name: value if type(value) is int and 1 <= value <= MAX_OUTPUT_TOKENS else None
        for name, value in values.items()
        if value is not None
    }


def output_size(fields: RawObject) -> OutputSize:
    """Return the most output that a body of these members requests."""
    bounds, choices = numbers_of(fields, BOUNDS).values(), numbers_of(fields, CHOICES).values()
    known = [number for number in (*bounds, *choices) if number is not None]
    often = max([1, *(number for number in choices if number is not None)])
    answers = prompts_in(fields) * min(often, MAX_CHOICES)
    if not bounds or len(known) < len(bounds) + len(choices):
        return OutputSize(0, answers)
    return OutputSize(max(number for number in bounds if number is not None) * answers, answers)


def prompts_in(fields: RawObject) -> int:
    """Return the number of prompts in `prompt`: one text, a list of texts, a list of token numbers, or a list of such lists.

    For a list that is too long to parse, return an upper bound: quotes inside its texts may count as texts.
    """
    raw = fields.get("prompt")
    if raw is None or kind_of(raw) != "[":
        return 1
    prompts = value_of(fields, "prompt")
    if prompts is not OVERSIZED:
        return 1 if all(type(one) is int for one in prompts or ()) else len(prompts)
    text = bytes(raw)
    lists = text.count(b"[") - 1
    escaped = max(text.count(b'\\"') - text.count(b"\\\\"), 0)
    texts = (text.count(b'"') - escaped) // 2
    first = kind_of(text[text.index(b"[") + 1 :].lstrip()[:64])
    if first in ("[", '"'):
        return lists if first == "[" else texts
    return max(lists, texts, 1)  # numbers, or something that no server accepts


def enforce_equal(name: str, value: Any, claimed: Any) -> Any:
    """Return the value of an option that a signed token may fix: the token's if the request sets none. Raise TokenForbids."""
    if claimed is None or value is None:
        return claimed if value is None else value
    if value != claimed:
        raise TokenForbids(f"The token fixes {name}: it is {claimed}", name)
    return value


def enforce_max(name: str, value: Any, most: int | None) -> Any:
    """Return the value of an option that a signed token may bound. Raise TokenForbids. (Its type is checked later.)"""
    if most is None or value is None:
        return most if value is None else value
    if isinstance(value, int | float) and value > most:
        raise TokenForbids(f"The token allows {name} {most} at most", name)
    return value


def reject_provider_files(payload: bytes) -> None:
    """Raise TokenForbids if a body names a file at a provider, which all that share the provider's account could name.

    In JSON, a quote inside a string follows a backslash, so that the pattern matches members only.
    """
    if (found := _FILE_REFERENCE.search(payload)) is not None:
        member = found[1].decode()
        raise TokenForbids(f"With a token, send the data itself: {member} names a file at a provider", member)


class OutputCap(NamedTuple):
    """The output that a token or a route allows a request."""

    name: str
    """The member that sets the bound in the payload."""
    most: int
    """Tokens of all answers together."""
    source: str
    """Begins error messages: `The token`, `The route`."""
    error: Callable[[str, str], ApiError]
    """Makes the rejection of a larger bound, from a message and the member."""


def cap_output_tokens(cap: OutputCap, fields: RawObject) -> None:
    """Bound the output of a body: all its answers together have at most `cap.most` tokens. Raise the error of `cap`."""
    name, most, source, error = cap
    choices = 1
    for member, number in numbers_of(fields, CHOICES).items():
        if number is None or number > min(MAX_CHOICES, most):
            limit = min(MAX_CHOICES, most)
            raise error(f"{source} bounds the output: {member} must be a number from 1 to {limit}", member)
        choices = max(choices, number)
    if "prompt" in fields and value_of(fields, "prompt") is OVERSIZED and kind_of(fields["prompt"]) == "[":
        raise error(f"{source} bounds the output: a long prompt must be a text, not a list", "prompt")
    choices *= prompts_in(fields) or 1
    if choices > most:
        raise error(f"{source} allows {most} tokens of output: fewer than there are answers", "prompt")
    least = each = most // choices
    for member, number in numbers_of(fields, BOUNDS).items():
        if number is None or number > each:
            raise error(f"{source} allows {most} tokens of output: {member} may be {each} at most", member)
        least = min(least, number)
    for member in BOUNDS:
        fields.pop(member, None)
    fields[name] = Raw(b"%d" % least)
