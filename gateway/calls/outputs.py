"""How much output a body asks for at most, by OpenAI's and Anthropic's names for it. Pure.

Credits are reserved by it and settled by usage: what a server's own option brings beyond it is paid when the task ends.
"""

import msgspec

from fairlane.gateway.calls.bodies import OVERSIZED, Members, value_of
from fairlane.streaming.jsontext import kind_of

MAX_CHOICES = 128
MOST = 10_000_000
"""Tokens of one answer; nobody means more."""
BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Members that bound an answer, in tokens."""
CHOICES = ("n", "best_of")
"""Members that say how often a body is answered."""


class Output(msgspec.Struct, frozen=True):
    """What a body asks for."""

    most: int
    """Tokens of all its answers together; 0: it does not say, or says something that is no number from 1 on."""
    answers: int
    """How many there are, as far as it can be told."""


def numbers_of(fields: Members, names: tuple[str, ...]) -> dict[str, int | None]:
    """Return what members of these names say, unless that is null; None of one that is no number from 1 to MOST."""
    said = {name: value_of(fields, name) for name in names if name in fields}
    return {
        name: value if type(value) is int and 1 <= value <= MOST else None
        for name, value in said.items()
        if value is not None
    }


def output_of(fields: Members) -> Output:
    """Return how much output a body of these members asks for at most."""
    bounds, choices = numbers_of(fields, BOUNDS).values(), numbers_of(fields, CHOICES).values()
    known = [number for number in (*bounds, *choices) if number is not None]
    often = max([1, *(number for number in choices if number is not None)])
    answers = prompts_in(fields) * min(often, MAX_CHOICES)
    if not bounds or len(known) < len(bounds) + len(choices):
        return Output(0, answers)
    return Output(max(number for number in bounds if number is not None) * answers, answers)


def prompts_in(fields: Members) -> int:
    """How many there are in `prompt`, which is one text, many, one of tokens' numbers, or many of these. Of a long list, so many
    that there are no more: quotes in its texts may count as some."""
    raw = fields.get("prompt")
    if raw is None or kind_of(raw) != "[":
        return 1
    prompts = value_of(fields, "prompt")
    if prompts is not OVERSIZED:
        return 1 if all(type(one) is int for one in prompts) else len(prompts)
    text = bytes(raw)
    lists = text.count(b"[") - 1
    escaped = max(text.count(b'\\"') - text.count(b"\\\\"), 0)
    texts = (text.count(b'"') - escaped) // 2
    first = kind_of(text[text.index(b"[") + 1 :].lstrip()[:64])
    if first in ("[", '"'):
        return lists if first == "[" else texts
    return max(lists, texts, 1)  # numbers, or what no server should take
