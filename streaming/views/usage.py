"""Token usage out of whatever workers and upstreams call it.

Known names: `inputTokens`/`outputTokens` (ours), `prompt_tokens`/`completion_tokens` (OpenAI's chat and
completions), `input_tokens`/`output_tokens` (OpenAI's Responses, Anthropic). A count is a whole number from 0
to 10⁹; everything else is ignored as if it were not there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import join_object, kind_of, members

MAX_TOKENS = 10**9

_number = msgspec.json.Decoder(float).decode
_NAMES = {
    "input": ("inputTokens", "prompt_tokens", "input_tokens"),
    "output": ("outputTokens", "completion_tokens", "output_tokens"),
    "total": ("totalTokens", "total_tokens"),
    "cached": ("cachedTokens", "cache_read_input_tokens", "prompt_cache_hit_tokens"),
    "written": ("cache_creation_tokens", "cache_creation_input_tokens"),
    "reasoning": ("reasoningTokens",),
}
"""The names of each count, the preferred one first."""
_DETAILS = {
    "cached": (("prompt_tokens_details", "input_tokens_details"), "cached_tokens"),
    "written": (("prompt_tokens_details", "input_tokens_details"), "cache_creation_tokens"),
    "reasoning": (("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
}
"""The objects that can hold a count, and its name there."""
_PLACES: dict[str, list[tuple[str, str | None]]] = {
    count: [(name, inner) for objects, inner in [_DETAILS.get(count, ((), ""))] for name in objects]
    + [(name, None) for name in names]
    for count, names in _NAMES.items()
}
"""Where a count can be, the preferred place first: the name of a member, and the name in it if that is an object."""
_MEANINGS = {name: count for count, names in _NAMES.items() for name in names}
_MEANINGS |= {"cached_tokens": "cached", "reasoning_tokens": "reasoning"}
COUNT_NAMES = frozenset(_NAMES["input"] + _NAMES["output"] + _NAMES["total"])
"""The names of the counts of input, of output and of both."""
REPAIRED = "repaired"
"""In a usage object, which tokens of it an answer used that did not match its schema and was asked for again."""
_ANTHROPIC_CACHE = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})
"""Anthropic's names, which count what its `input_tokens` do not."""
_ALL_INPUT = frozenset({"inputTokens", "prompt_tokens"})

Members = Mapping[str, Raw]


class Counts(NamedTuple):
    """Tokens of a usage object; None for what it does not have."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    """Of the input, what a cache held."""
    reasoning: int | None = None
    """Of the output, what its reader does not see."""


def pick_usage(raw: bytes | None, result: bytes | None = None, latest: bytes | None = None) -> bytes | None:
    """The usage object that counts: the worker's own, else the result's, else the latest reported on the way.

    The first that has a count wins; when none does, the first that has anything; else None.
    """
    empty: bytes | None = None
    for number in range(3):  # a result is looked into only when the worker reports no usage otherwise
        usage = raw if number == 0 else (members(result) or {}).get("usage") if number == 1 else latest
        if usage is not None and (found := members(usage)):
            if _has_count(found):
                return bytes(usage)
            empty = empty or bytes(usage)
    return empty


def normalise_usage(raw: bytes | None, result: bytes | None = None) -> Counts:
    """The tokens of the usage object that counts."""
    own = _counts(members(raw) or {})
    if result is None or own.input is not None or own.output is not None:
        return own
    of_result = _counts(members((members(result) or {}).get("usage")) or {})
    return own if of_result == Counts() else of_result


def estimated_usage(counts: tuple[int, int], reported: bytes | None = None) -> bytes:
    """Return the gateway's own count as a usage object, marked so; `reported`: the worker's, which lacks a count."""
    own = (("inputTokens", counts[0]), ("outputTokens", counts[1]))
    return join_object(
        [
            *_without_counts(members(reported) or {}),
            *((name, b"%d" % count) for name, count in own),
            ("estimated", b"true"),
        ]
    )


def usage_of_both(reported: bytes, before: tuple[int, int, int, int], *, estimated: bool = False) -> bytes:
    """A usage object that counts another answer's tokens, too: of input, output, cached and reasoning (-1: unknown); `estimated`:
    these are the gateway's own count.

    It keeps the names that it has; `repaired` says what the other answer used of it.
    """
    found = members(reported) or {}
    found.pop(REPAIRED, None)
    more = dict(zip(("input", "output", "cached", "reasoning"), (max(n, 0) for n in before), strict=True))
    more["total"] = more["input"] + more["output"]
    names = {
        count: next((name for name in _NAMES[count] if name in found), _NAMES[count][0])
        for count in ("input", "output")
    }
    own = {name: Raw(b"0") for name in names.values()}
    pairs = _added({**own, **found}, more)
    if estimated and "estimated" not in found:
        pairs.append(("estimated", b"true"))
    first = join_object((name, b"%d" % more[count]) for count, name in names.items())
    return join_object([*pairs, (REPAIRED, first)])


def _added(found: Members, more: Mapping[str, int]) -> list[tuple[str, bytes]]:
    """The members of a usage object, with more of what they count."""
    pairs = []
    for name, value in found.items():
        total = bytes(value)
        if (added := more.get(_MEANINGS.get(name, ""))) is not None:
            total = b"%d" % min((_count(value) or 0) + added, MAX_TOKENS)
        elif name.endswith("_details") and (details := members(value)) is not None:
            total = join_object(_added(details, more))
        pairs.append((name, total))
    return pairs


def put_usage(result: bytes, usage: bytes) -> bytes:
    """A result with this usage in the place of its own; one that has none as it is."""
    found = members(result) or {}
    if not kind_of(found.get("usage")):
        return result
    return join_object({**found, "usage": Raw(usage)}.items())


def openai_usage(raw: bytes | None) -> bytes | None:
    """OpenAI's usage object; None when nothing is known.

    One unknown count becomes 0; further members are kept.
    """
    found = members(raw) or {}
    prompt, completion = _first(found, "input"), _first(found, "output")
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0, completion or 0
    pairs = [
        ("prompt_tokens", b"%d" % prompt),
        ("completion_tokens", b"%d" % completion),
        ("total_tokens", b"%d" % max(_first(found, "total") or 0, prompt + completion)),
    ]
    for name, value in _without_counts(found):
        if name == REPAIRED:
            value = openai_usage(value) or value
        if not (name.endswith("_details") and members(value) is None):
            pairs.append((name, value))
    return join_object(pairs)


def anthropic_usage(raw: bytes | None) -> dict[str, Any]:
    """Anthropic's usage object, whose counts of the input are apart: not cached, read from a cache, written to one. What is not
    known is 0; tokens of reasoning are there if they were reported, and `estimated` where the gateway counted itself."""
    found = members(raw)
    if not found:
        return {"input_tokens": 0, "output_tokens": 0}
    counts, (fresh, cached, written) = _counts(found), _input_parts(found)
    usage: dict[str, Any] = {
        "input_tokens": fresh,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": counts.output or 0,
        **_estimated(found),
    }
    if counts.reasoning is not None:
        usage["output_tokens_details"] = {"thinking_tokens": counts.reasoning}
    return usage


def responses_usage(raw: bytes | None) -> bytes | None:
    """The usage object of OpenAI's Responses; None when nothing is known. What is unknown is 0; `estimated` where the gateway
    counted itself."""
    found = members(raw) or {}
    if not _has_count(found):
        return None
    counts, (fresh, cached, written) = _counts(found), _input_parts(found)
    read, wrote = fresh + cached + written, counts.output or 0
    usage: dict[str, Any] = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": wrote,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": read + wrote,
        **_estimated(found),
    }
    return msgspec.json.encode(usage)


def media_usage(raw: bytes | None) -> bytes | None:
    """A usage object as OpenAI has it for audio and images: `tokens` with their number, or `duration` with `seconds`; None where
    neither is known. Further members stay."""
    found = members(raw) or {}
    rest = [pair for pair in _without_counts(found) if pair[0] != "type"]
    if _has_count(found):
        read, wrote = _first(found, "input") or 0, _first(found, "output") or 0
        own = (("input_tokens", read), ("output_tokens", wrote), ("total_tokens", read + wrote))
        return join_object([("type", b'"tokens"'), *((name, b"%d" % count) for name, count in own), *rest])
    if kind_of(found.get("seconds")).isdigit():
        return join_object([("type", b'"duration"'), *rest])
    return None


def _counts(found: Members) -> Counts:
    return Counts(
        _first(found, "input"), _first(found, "output"), _first(found, "cached"), _first(found, "reasoning")
    )


def _input_parts(found: Members) -> tuple[int, int, int]:
    """The input that was not cached, read from a cache, and written to one."""
    read, cached, written = (_first(found, count) or 0 for count in ("input", "cached", "written"))
    if not (_ANTHROPIC_CACHE & found.keys()) or _ALL_INPUT & found.keys():
        read = max(read - cached - written, 0)
    return read, cached, written


def _estimated(found: Members) -> dict[str, bool]:
    return {"estimated": True} if bytes(found.get("estimated", b"")) == b"true" else {}


def _without_counts(found: Members) -> Iterable[tuple[str, bytes]]:
    return [(name, bytes(value)) for name, value in found.items() if name not in COUNT_NAMES]


def _has_count(found: Members) -> bool:
    return _first(found, "input") is not None or _first(found, "output") is not None


def _first(found: Members, count: str) -> int | None:
    """A count by its name in one of the objects that can hold it, else by one of its names."""
    for name, inner in _PLACES[count]:
        if name in found:
            raw = found[name] if inner is None else (members(found[name]) or {}).get(inner)
            if raw is not None and (value := _count(raw)) is not None:
                return value
    return None


def _count(raw: bytes) -> int | None:
    try:
        value = _number(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return int(value) if 0 <= value <= MAX_TOKENS and value.is_integer() else None
