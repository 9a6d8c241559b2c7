"""The stored input of a response: items as they are listed, and put before the input of a later response. Pure."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import items, join_object, json_string, kind_of, members, one_line

_text = msgspec.json.Decoder(str).decode


def stored_items(raw: Raw, known: Mapping[str, bytes]) -> list[bytes]:
    """Return the items of an input that was read, each one line: with their type, messages with a list of parts, references
    replaced by their items."""
    if kind_of(raw) == '"':
        return [_message({"role": Raw(b'"user"'), "content": raw})]
    return [_kept(item, known) for item in items(raw) or ()]


def with_id(raw: bytes, item_id: str) -> bytes:
    """Return an item of a response's input with this id, if it has none of its own."""
    found = members(raw) or {}
    if kind_of(found.get("id")):
        return raw
    rest = ((name, bytes(value)) for name, value in found.items() if name != "id")
    return join_object([("id", json_string(item_id)), *rest])


def _kept(raw: bytes, known: Mapping[str, bytes]) -> bytes:
    found = members(raw) or {}
    kind = _text(found["type"]) if kind_of(found.get("type")) else ""
    if kind == "message" or (not kind and kind_of(found.get("role"))):
        return _message(found)
    if kind in ("item_reference", ""):
        return known[_text(found["id"])]
    return one_line(raw)


def _message(found: Mapping[str, Raw]) -> bytes:
    role, content = bytes(found["role"]), bytes(found["content"])
    if kind_of(content) == '"':
        of_model = _text(role) == "assistant"
        part = [("type", b'"output_text"' if of_model else b'"input_text"'), ("text", content)]
        content = b"[%b]" % join_object([*part, *([("annotations", b"[]")] if of_model else ())])
    pairs: dict[str, bytes | Raw] = {"type": b'"message"', "status": b'"completed"'}
    pairs |= {name: raw for name, raw in found.items() if kind_of(raw)}
    pairs |= {"role": role, "content": content}
    return one_line(join_object((name, bytes(raw)) for name, raw in pairs.items()))
