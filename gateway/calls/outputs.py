"""How much output a body asks for at most, under any of the names that servers know. Pure.

Which of them the server behind a worker looks at, is not known: so what counts is the most that one of them says. Looked at are
the members of the body, and those of a few objects in it that servers take options from.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from fairlane.gateway.calls.bodies import OVERSIZED, Members, value_of
from fairlane.streaming.jsontext import kind_of

MAX_CHOICES = 128
MOST = 10_000_000
"""Tokens of one answer; nobody means more."""


Says = Literal["bound", "least", "thought", "choices"]
"""What a member of a body says: how long an answer may be, and must be, tokens; how long the model may think, which servers count
to the answer or beside it; and how often it is answered."""

_NAMES: dict[Says, tuple[str, ...]] = {
    "bound": (
        *("max_completion_tokens", "max_tokens", "max_output_tokens"),
        *("max_new_tokens", "n_predict", "num_predict"),
        *("max_length", "max_gen_toks", "max_gen_len", "max_tokens_to_sample", "max_generated_tokens"),
        *("max_tokens_to_generate", "max_decode_steps", "max_output_len", "maxtokens", "maxoutputtokens"),
        *("maxnewtokens", "maxtokencount", "maxlength"),
    ),
    "least": ("min_tokens", "min_new_tokens", "min_length"),
    "thought": (
        *("thinking_budget", "budget_tokens", "thinkingbudget", "thinking_budget_tokens"),
        *("thinking_token_budget", "reasoning_budget", "max_thinking_tokens"),
    ),
    "choices": ("n", "best_of", "num_return_sequences", "candidate_count", "candidatecount"),
}
MEMBERS = {name: says for says, names in _NAMES.items() for name in names}
"""By their names in lower case: some servers take a name in any."""
OBJECTS = frozenset(
    {
        *("options", "parameters", "params", "sampling_params", "sampling_parameters", "extra_body"),
        *("generation_config", "generationconfig", "generate_kwargs", "model_kwargs", "inferenceconfig"),
        *("thinking", "reasoning", "thinking_config", "thinkingconfig", "chat_template_kwargs", "google"),
    }
)
"""Members whose own members are looked at, too, also in one another."""
_THINKING = frozenset({"thinking", "reasoning"})
_LOOKED_AT = MEMBERS.keys() | OBJECTS
MAX_OBJECTS = 16
"""More of them, in one spelling and another, are not looked at, and nothing that they say is relied on."""
_LONGEST = 64
"""Bytes of a number."""
BOUNDS, CHOICES = _NAMES["bound"], _NAMES["choices"]


class Said(NamedTuple):
    """One member of a body that says something of its output."""

    name: str
    folded: str
    """In lower case."""
    says: Says
    value: Any
    inside: bool = False
    """It stands in an object with options."""

    @property
    def number(self) -> int | None:
        """Of tokens or answers, 0: it asks for none; None: it is no number that could be relied on."""
        value = self.value
        least = 0 if self.says in ("least", "thought") else 1
        return value if type(value) is int and least <= value <= MOST else None


class Output(msgspec.Struct, frozen=True):
    """What a body asks for."""

    most: int
    """Tokens of all its answers together; 0: it does not say, or in a way that some server may read as no bound."""
    answers: int
    """How many there are, as far as it can be told."""


def said_of_output(fields: Members) -> Iterator[Said]:
    """What the members of a body, and of its objects with options, say of its output. What is null says nothing."""
    objects = 0
    for name in [name for name in fields if name.casefold() in _LOOKED_AT]:
        raw, folded = fields[name], name.casefold()
        if says := MEMBERS.get(folded):
            value = value_of(fields, name) if len(memoryview(raw)) <= _LONGEST else OVERSIZED
            if value is not None:
                yield Said(name, folded, says, value)
        elif kind_of(raw) == "{":
            objects += 1
            options = value_of(fields, name) if objects <= MAX_OBJECTS else OVERSIZED
            if not isinstance(options, dict) or _says_twice(raw):
                yield Said(name, folded, "bound", OVERSIZED, inside=True)
                continue
            yield from _said_inside(folded, options)


def _said_inside(folded: str, options: dict[str, Any]) -> Iterator[Said]:
    """The same of an object with options, and of those in it."""
    for name, value in options.items():
        small = name.casefold()
        if says := MEMBERS.get(small):
            if value is not None:
                thinks = says == "bound" and folded in _THINKING
                yield Said(name, small, "thought" if thinks else says, value, inside=True)
        elif small in OBJECTS and isinstance(value, dict):
            yield from _said_inside(small, value)


def output_of(fields: Members) -> Output:
    """How much output a body of these members asks for at most."""
    most, known = {"bound": 0, "least": 0, "thought": 0, "choices": 1}, True
    for said in said_of_output(fields):
        number = said.number
        if number is None:
            known = False
        elif number > most[said.says]:
            most[said.says] = number
    answers = prompts_in(fields) * min(most["choices"], MAX_CHOICES)
    bound = most["bound"]
    if not (bound and known):
        return Output(0, answers)
    return Output((max(bound, most["least"]) + most["thought"]) * answers, answers)


def _says_twice(raw: bytes) -> bool:
    """Whether an object, or one in it, has a member twice: servers take the first one, or the last."""
    twice = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal twice
        twice = twice or len({name for name, _ in pairs}) < len(pairs)

    json.loads(bytes(raw), object_pairs_hook=look, parse_int=str)
    return twice


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
    first = kind_of(text[text.index(b"[") + 1 :].lstrip()[:_LONGEST])
    if first in ("[", '"'):
        return lists if first == "[" else texts
    return max(lists, texts, 1)  # numbers, or what no server should take
