"""What an upstream takes otherwise than OpenAI's reference has it: names of members, roles, values. Pure.

Known quirks are in `providers.py`. An operator sets others (`--quirk NAME=VALUE`, `quirks:` of an upstream), and a rejection that
names a member which can be sent otherwise, or not at all, is learnt from (`learn`). docs/models.md has the table.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

Quirks = Mapping[str, str]
"""What becomes of a member: `omit`, `allow` (clients can set it), `per_user` (it separates the prompt caches of users; for
a request it is `=VALUE`), or the name under which it is sent. Four have values of their own: `system=first`, `developer=system`,
`max_output_tokens=9000`, `reasoning_effort=low,high`."""
ALLOW, OMIT, PER_USER = "allow", "omit", "per_user"
OLD_BOUND = {"max_completion_tokens": "max_tokens"}
"""Servers that do not know OpenAI's newer name ignore it, and so the bound; those that reject the older name say so."""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,99}")
_BOUNDS = ("max_tokens", "max_completion_tokens")
_NOT_MEMBERS = frozenset({"system", "developer", "max_output_tokens"})
_OPTIONAL = ("parallel_tool_calls", "user", "verbosity", "reasoning_content", "strict")
"""Members of clients; an answer without them is still one to the request."""
_COMMON_WORDS = frozenset({"stream", "user", "strict"})
"""They occur in any sentence: as members they are quoted, or the end of a path."""
_EFFORT = re.compile(r"\b(?:reasoning[_. ]?)?effort\b|\bthinking|\breasoning\b", re.IGNORECASE)
_QUOTED_EFFORT = re.compile(rf"""["'`]({"|".join(EFFORTS)})["'`]""")
_MOST = re.compile(
    r"(?:at most|less than or equal to|range\D{0,40}\[\d+,|\d >|maximum\D{0,20})\s*`?([1-9]\d{1,7})",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(
    r"\bun(?:supported|known|recogni[sz]ed|expected)|(?:\bnot|n't) (?:\w+ )?(?:support|permitted|allowed|recogni[sz]ed|enabled)"
    r"|\bextra_forbidden|\bextra (?:input|field|param)|\bdeprecated",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"\b(?:values?|(?:unsupported|invalid)_value|variant|characters?|(?:should|must) be|too (?:long|large|short))\b",
    re.IGNORECASE,
)
_ROLES = re.compile(r"\b(?:system|developer|roles?|template)\b|first message", re.IGNORECASE)


def read_quirks(pairs: Iterable[str]) -> dict[str, str]:
    """Return the quirks that texts like `stream_options=omit` set. Raise ValueError for one that cannot be."""
    quirks = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        valid = {
            "system": value == "first",
            "developer": value == "system",
            "max_output_tokens": value.isdecimal() and 0 < int(value[:12]) < 10**9,
            "reasoning_effort": value == OMIT or {*value.split(",")} <= {*EFFORTS},
        }
        if not _NAME.fullmatch(name) or not valid.get(name, _NAME.fullmatch(value) is not None):
            raise ValueError(
                f"{pair[:100]!r} is not a quirk; write for example stream_options=omit, max_tokens=max_completion_tokens, "
                "system=first, developer=system, reasoning_effort=low,medium,high or max_output_tokens=8192."
            )
        quirks[name] = value
    return quirks


def merged(quirks: Quirks, others: Quirks) -> dict[str, str]:
    """Return both; of two that rename in a circle, the one of `others`."""
    kept = {name: value for name, value in quirks.items() if others.get(value) != name}
    return {**kept, **others}


def adapt(body: dict[str, Any], quirks: Quirks) -> None:
    """Change the members of a chat request, JSON or Python values, to what the upstream takes."""
    for name, instead in quirks.items():
        if instead[:1] == "=":
            body[name] = instead[1:]
        elif (
            name not in body or name in _NOT_MEMBERS or instead == ALLOW or (name == "stream" and body[name])
        ):
            continue
        elif name == "reasoning_effort" and instead != OMIT:
            body[name] = _nearest(body[name], instead.split(","))
        else:
            value = body.pop(name)
            body |= {} if instead == OMIT else {instead: value}
    if most := quirks.get("max_output_tokens"):
        for name in body.keys() & {*_BOUNDS}:
            body[name] = Raw(str(most).encode()) if _is_above(body[name], int(most)) else body[name]


def learn(rejection: str, payload: bytes) -> dict[str, str]:
    """Return what a rejection of a request suggests to send otherwise: the quirks that concern a member it names.

    They are for the requests of all clients. So what one client sent counts only if the upstream does not know the member, or
    rejects a value that OpenAI's reference has.
    """
    sent = msgspec.json.decode(payload, type=_Sent)
    lacks_member = _UNKNOWN.search(rejection) is not None and not _VALUE.search(rejection)
    suspects = ["stream", *(_OPTIONAL if lacks_member else ())]
    if not isinstance(sent.stream_options, dict) or sent.stream_options.keys() <= {"include_usage"}:
        suspects.append("stream_options")
    if sent.encoding_format in ("float", "base64"):
        suspects.append("encoding_format")
    found = {name: OMIT for name in suspects if _is_named(name, rejection)}
    bounds = [name for name in _BOUNDS if _is_named(name, rejection)]
    if bounds and (most := _MOST.search(rejection)):
        found["max_output_tokens"] = most[1]
    elif bounds and lacks_member:
        found |= {name: other for name, other in (_BOUNDS, _BOUNDS[::-1]) if name in bounds}
    if sent.reasoning_effort in EFFORTS and _EFFORT.search(rejection):
        efforts = dict.fromkeys(_QUOTED_EFFORT.findall(rejection))
        efforts.pop(sent.reasoning_effort, None)
        if efforts or lacks_member:
            found["reasoning_effort"] = ",".join(efforts) or OMIT
    if _ROLES.search(rejection):
        found |= {"system": "first", "developer": "system"}
    return found


class _Sent(msgspec.Struct):
    reasoning_effort: Any = None
    stream_options: Any = None
    encoding_format: Any = None


def _is_named(name: str, text: str) -> bool:
    before, after = ("""["'`.]""", """["'`]""") if name in _COMMON_WORDS else (r"(?<!\w)", r"(?!\w)")
    words = name.replace("_", "[_ -]?")
    return re.search(f"{before}{words}(?:{after}|$)", text, re.IGNORECASE) is not None


def _nearest(effort: Any, known: list[str]) -> Any:
    wanted = msgspec.json.decode(effort) if isinstance(effort, Raw) else effort
    if wanted not in EFFORTS or wanted in known:
        return effort
    return min(known, key=lambda one: abs(EFFORTS.index(one) - EFFORTS.index(wanted)))


def _is_above(number: Any, most: int) -> bool:
    value = msgspec.json.decode(number) if isinstance(number, Raw) else number
    return isinstance(value, int) and value > most
