"""What the finished text of a task must be, and which texts that is asked of. Pure.

A task says it in one text (`TaskSpec.answer`): a JSON schema, or one of the words below.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fairlane.streaming.jsontext import kind_of, members, too_deep
from fairlane.streaming.views.choice import Choice

OBJECT = "object"
"""Any JSON object."""
OF_PAYLOAD = "payload"
"""What the payload's `response_format` says: so a schema is not stored twice."""
ANY_OBJECT = b'{"type":"object"}'

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_TEXT_BYTES = 2 << 20
"""Of the texts of one answer together; a longer one is not looked at, and fails."""
MAX_PLACE_CHARS = 200
MAX_REASON_CHARS = 300
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNFINISHED = frozenset({b'"length"', b'"content_filter"', b'"tool_calls"', b'"function_call"'})
"""Ends of a choice after which its text is no answer to the schema: it was cut off, filtered, or something else stands for it."""


def wanted_of(fields: Mapping[str, msgspec.Raw], *, unstrict: bool) -> str:
    """What a body's `response_format`, or `text.format` of a Responses request, asks for, as `TaskSpec.answer` says it: '' for
    nothing that is looked at.

    `unstrict`: also schemas without `"strict": true`, and `json_object`. Raises ValueError, with a sentence, for a schema that
    cannot be one.
    """
    kind, said = _format_of(fields)
    if kind == "json_object":
        return OBJECT if unstrict else ""
    if kind != "json_schema" or said is None or not kind_of(said.get("schema")):
        return ""
    strict = bytes(said.get("strict", b"")).strip()
    if strict != b"true" and (not unstrict or strict == b"false"):
        return ""
    check_form(bytes(said["schema"]))
    return OF_PAYLOAD


def schema_of(answer: str, payload: bytes) -> bytes:
    """The schema that a task's text must match. ANY_OBJECT where its payload does not say it (any more)."""
    if answer == OBJECT:
        return ANY_OBJECT
    if answer != OF_PAYLOAD:
        return answer.encode()
    _, said = _format_of(members(payload) or {})
    return bytes((said or {}).get("schema", ANY_OBJECT))


def _format_of(fields: Mapping[str, msgspec.Raw]) -> tuple[str, dict[str, msgspec.Raw] | None]:
    """The type of what a body wants, and the object with its schema: the same object in Responses, an inner one in a chat."""
    if "response_format" in fields:
        wanted = members(fields["response_format"]) or {}
        return _text(wanted.get("type")), members(wanted.get("json_schema"))
    wanted = members((members(fields.get("text")) or {}).get("format")) or {}
    return _text(wanted.get("type")), wanted


def check_form(schema: bytes) -> None:
    """Raise ValueError, with a sentence, for what is too large to be a schema, or none by its form."""
    if kind_of(schema) not in ("{", "t", "f"):
        raise ValueError("it must be an object")
    if len(schema) > MAX_SCHEMA_BYTES:
        raise ValueError(f"it has {len(schema)} bytes, and may have {MAX_SCHEMA_BYTES}")
    if too_deep(schema, MAX_SCHEMA_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")


def texts_to_check(choices: Iterable[Choice]) -> list[bytes]:
    """The texts (JSON strings) of those choices that came to their end as texts. A refusal and calls of tools are none."""
    return [
        choice.content or b'""'
        for choice in choices
        if choice.refusal is None and not choice.tool_calls and choice.finish not in _UNFINISHED
    ]


def place_of(path: Sequence[str | int]) -> str:
    """Where in a value: `$.skills[3].name`; names that are none are quoted: `$["my key"]`."""
    parts = ["$"]
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_NAME.fullmatch(step):
            parts.append(f".{step}")
        else:
            parts.append(f"[{msgspec.json.encode(step).decode()}]")
    text = "".join(parts)
    return text if len(text) <= MAX_PLACE_CHARS else text[: MAX_PLACE_CHARS - 1] + "…"


def _text(raw: msgspec.Raw | None) -> str:
    if raw is None or kind_of(raw) != '"':
        return ""
    return str(msgspec.json.decode(raw))
