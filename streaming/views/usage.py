"""Token usage out of whatever workers and upstreams call it.

Known names: `inputTokens`/`outputTokens` (ours), `prompt_tokens`/`completion_tokens` (OpenAI's chat and
completions), `input_tokens`/`output_tokens` (OpenAI's Responses, Anthropic). A count is a whole number from 0
to 10⁹; everything else is ignored as if it were not there.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec

from fairlane.streaming.jsontext import join_object, kind_of, members

MAX_TOKENS = 10**9

_number = msgspec.json.Decoder(float).decode
_INPUT = ("inputTokens", "prompt_tokens", "input_tokens")
_OUTPUT = ("outputTokens", "completion_tokens", "output_tokens")
_TOTAL = ("totalTokens", "total_tokens")
REPAIRED = "repaired"
"""In a usage object, which tokens of it an answer used that did not match its schema and was asked for again."""
COUNT_NAMES = frozenset(_INPUT + _OUTPUT + _TOTAL)
"""The names of the counts of input, of output and of both."""
_CACHED = ("cachedTokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
_REASONING = ("reasoningTokens",)
_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
_WRITTEN = ("cache_creation_tokens", "cache_creation_input_tokens")
_ANTHROPIC_CACHE = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})
"""Anthropic's names, which count what its `input_tokens` do not."""
_ALL_INPUT = frozenset({"inputTokens", "prompt_tokens"})


class Counts(NamedTuple):
    """Tokens of a usage object; None for what it does not have."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    """Of the input, what a cache held."""
    reasoning: int | None = None
    """Of the output, what its reader does not see."""


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _Own(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A usage object by our names alone, which has all that it must: as nearly every worker's."""

    input_tokens: _Tokens
    output_tokens: _Tokens
    cached_tokens: _Tokens | None = None
    reasoning_tokens: _Tokens | None = None


_read_own = msgspec.json.Decoder(_Own).decode


def pick_usage(raw: bytes | None, result: bytes | None = None, latest: bytes | None = None) -> bytes | None:
    """The usage object that counts: the worker's own, else the result's, else the latest reported on the way.

    The first that has a count wins; when none does, the first that has anything; else None.
    """
    picked = _pick(raw, result, latest)
    return None if picked is None else picked[0]


def normalise_usage(raw: bytes | None, result: bytes | None = None) -> Counts:
    """The tokens of the usage object that counts."""
    if raw is not None:
        try:  # it says the same as what follows, which reads whatever is not so plain
            own = _read_own(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
        else:
            return Counts(own.input_tokens, own.output_tokens, own.cached_tokens, own.reasoning_tokens)
    picked = _pick(raw, result, None)
    if picked is None:
        return Counts()
    _, found, reported = picked
    return _counts(found, reported)


def estimated_usage(counts: tuple[int, int], reported: bytes | None = None) -> bytes:
    """Return the gateway's own count as a usage object, marked so; `reported`: the worker's, which lacks a count."""
    pairs = [
        (name, bytes(value)) for name, value in (members(reported) or {}).items() if name not in COUNT_NAMES
    ]
    own = (("inputTokens", counts[0]), ("outputTokens", counts[1]))
    return join_object([*pairs, *((name, b"%d" % count) for name, count in own), ("estimated", b"true")])


def usage_of_both(reported: bytes, before: tuple[int, int, int, int], *, estimated: bool = False) -> bytes:
    """A usage object that counts another answer's tokens, too: of input, output, cached and reasoning (-1: unknown); `estimated`:
    these are the gateway's own count.

    It keeps the names that it has; `repaired` says what the other answer used of it.
    """
    found = members(reported) or {}
    read, wrote, cached, reasoning = (max(count, 0) for count in before)
    read_name = next((name for name in _INPUT if name in found), "inputTokens")
    wrote_name = next((name for name in _OUTPUT if name in found), "outputTokens")
    own = {read_name: msgspec.Raw(b"0"), wrote_name: msgspec.Raw(b"0"), **found}
    pairs = [
        (name, _more_of(name, bytes(value), read, wrote, cached, reasoning))
        for name, value in own.items()
        if name != REPAIRED
    ]
    if estimated and "estimated" not in found:
        pairs.append(("estimated", b"true"))
    return join_object(
        [*pairs, (REPAIRED, b'{"%b":%d,"%b":%d}' % (read_name.encode(), read, wrote_name.encode(), wrote))]
    )


def _more_of(name: str, value: bytes, read: int, wrote: int, cached: int, reasoning: int) -> bytes:
    """A member of a usage object, with so much more of what it counts."""
    more = read if name in _INPUT else wrote if name in _OUTPUT else read + wrote if name in _TOTAL else None
    if more is None:
        more = cached if name in _CACHED else reasoning if name in _REASONING else None
    if more is not None:
        return b"%d" % min((_count(msgspec.Raw(value)) or 0) + more, MAX_TOKENS)
    details = members(value) if name in _INPUT_DETAILS + _OUTPUT_DETAILS else None
    if details is None:
        return value
    part, more = ("cached_tokens", cached) if name in _INPUT_DETAILS else ("reasoning_tokens", reasoning)
    if more and part in details:
        details[part] = msgspec.Raw(b"%d" % ((_count(details[part]) or 0) + more))
    return join_object((member, bytes(count)) for member, count in details.items())


def put_usage(result: bytes, usage: bytes) -> bytes:
    """A result with this usage in the place of its own; one that has none as it is."""
    found = members(result) or {}
    if not kind_of(found.get("usage")):
        return result
    return join_object({**found, "usage": msgspec.Raw(usage)}.items())


def openai_usage(raw: bytes | None, result: bytes | None = None, latest: bytes | None = None) -> bytes | None:
    """OpenAI's usage object; None when nothing is known.

    One unknown count becomes 0; further members are kept.
    """
    picked = _pick(raw, result, latest)
    if picked is None or picked[2] == (None, None):
        return None
    _, found, reported = picked
    prompt, completion = reported[0] or 0, reported[1] or 0
    total = max(_first(found, _TOTAL) or 0, prompt + completion)
    pairs = [
        ("prompt_tokens", b"%d" % prompt),
        ("completion_tokens", b"%d" % completion),
        ("total_tokens", b"%d" % total),
    ]
    for name, value in found.items():
        if name not in COUNT_NAMES and not (name.endswith("_details") and members(value) is None):
            pairs.append((name, bytes(value)))
    if REPAIRED in found:
        of_first = openai_usage(bytes(found[REPAIRED]))
        pairs = [(name, of_first or value) if name == REPAIRED else (name, value) for name, value in pairs]
    return join_object(pairs)


def anthropic_usage(
    raw: bytes | None, result: bytes | None = None, latest: bytes | None = None
) -> dict[str, Any]:
    """Anthropic's usage object, whose counts of the input are apart: not cached, read from a cache, written to one. What is not
    known is 0; tokens of reasoning are there if they were reported, and `estimated` where the gateway counted itself."""
    picked = _pick(raw, result, latest)
    if picked is None:
        return {"input_tokens": 0, "output_tokens": 0}
    _, found, reported = picked
    counts = _counts(found, reported)
    cached, written = counts.cached or 0, _detail(found, _WRITTEN, _INPUT_DETAILS, _WRITTEN[0]) or 0
    fresh = counts.input or 0
    if not (_ANTHROPIC_CACHE & found.keys()) or _ALL_INPUT & found.keys():
        fresh = max(fresh - cached - written, 0)
    usage: dict[str, Any] = {
        "input_tokens": fresh,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": counts.output or 0,
    }
    if bytes(found.get("estimated", b"")) == b"true":
        usage["estimated"] = True
    if counts.reasoning is not None:
        usage["output_tokens_details"] = {"thinking_tokens": counts.reasoning}
    return usage


def responses_usage(
    raw: bytes | None, result: bytes | None = None, latest: bytes | None = None
) -> bytes | None:
    """The usage object of OpenAI's Responses; None when nothing is known. What is unknown is 0; `estimated` where the gateway
    counted itself."""
    picked = _pick(raw, result, latest)
    if picked is None or picked[2] == (None, None):
        return None
    _, found, reported = picked
    counts = _counts(found, reported)
    cached, written = counts.cached or 0, _detail(found, _WRITTEN, _INPUT_DETAILS, _WRITTEN[0]) or 0
    read, wrote = counts.input or 0, counts.output or 0
    if _ANTHROPIC_CACHE & found.keys() and not _ALL_INPUT & found.keys():
        read += cached + written
    usage: dict[str, Any] = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": wrote,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": read + wrote,
    }
    if bytes(found.get("estimated", b"")) == b"true":
        usage["estimated"] = True
    return msgspec.json.encode(usage)


def with_usage(
    body: bytes, usage: bytes | None, draw: Callable[[bytes | None], bytes | None] = openai_usage
) -> bytes:
    """An object of OpenAI's as it is, or with this usage, in the form that `draw` gives it, if it has none."""
    found = members(body) or {}
    if kind_of(found.get("usage")) or (reported := draw(usage)) is None:
        return body
    return join_object(
        [*((name, bytes(value)) for name, value in found.items() if name != "usage"), ("usage", reported)]
    )


def _pick(
    raw: bytes | None, result: bytes | None, latest: bytes | None
) -> tuple[bytes, dict[str, msgspec.Raw], tuple[int | None, int | None]] | None:
    """See `pick_usage`: the object, its members, and its counts of input and output."""
    empty: tuple[bytes, dict[str, msgspec.Raw], tuple[int | None, int | None]] | None = None
    for number in range(3):  # a result is looked into only when the worker reports no usage otherwise
        usage = raw if number == 0 else _usage_of(result) if number == 1 else latest
        found = members(usage)
        if usage is not None and found:
            counts = _first(found, _INPUT), _first(found, _OUTPUT)
            if counts != (None, None):
                return usage, found, counts
            empty = empty or (usage, found, counts)
    return empty


def _counts(found: dict[str, msgspec.Raw], reported: tuple[int | None, int | None]) -> Counts:
    """The counts of a usage object whose input and output are known."""
    return Counts(
        *reported,
        _detail(found, _CACHED, _INPUT_DETAILS, "cached_tokens"),
        _detail(found, _REASONING, _OUTPUT_DETAILS, "reasoning_tokens"),
    )


def _usage_of(result: bytes | None) -> bytes | None:
    found = members(result)
    usage = found.get("usage") if found else None
    return None if usage is None else bytes(usage)


def _first(found: dict[str, msgspec.Raw], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in found and (count := _count(found[name])) is not None:
            return count
    return None


def _detail(
    found: dict[str, msgspec.Raw], names: tuple[str, ...], details: tuple[str, ...], name: str
) -> int | None:
    """A count by one of its `names`, or by its `name` in one of the objects `details`."""
    for at in details:
        if at in found and (count := _first(members(bytes(found[at])) or {}, (name,))) is not None:
            return count
    return _first(found, names)


def _count(raw: bytes) -> int | None:
    try:
        value = _number(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return int(value) if 0 <= value <= MAX_TOKENS and value.is_integer() else None
