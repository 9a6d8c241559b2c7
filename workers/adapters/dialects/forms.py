"""A payload as a form (`multipart/form-data`). Pure; the way here is `gateway/calls/media/forms.py`.

| in the payload | in the form |
|---|---|
| a text | a field |
| a number, true or false | its JSON as a field; null is left out |
| a list | a field `name[]` for each item |
| an object | a field `name[key]` for each member |
| `{"filename", "contentType", "data"}` | a file; `data` is base64 |
"""

import binascii
import re
from base64 import b64decode

import msgspec
from msgspec import Raw, Struct

MAX_LEVELS = 4
MAX_FIELDS = 1024
_OTHER_TYPE = "application/octet-stream"
_TYPE = re.compile(r"[!-~]{1,100}(?:[ !-~]{1,100})?")
_BREAKS = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A", "\\": "_"})
"""Some servers take a backslash for an escape, and what stands behind its quote for another parameter."""
_NO_NAME = re.compile(r'[\[\]\\"\x00-\x1f\x7f]')
"""What a member's name may not hold: servers would read another name than the one that was looked at."""


class _File(Struct, rename="camel"):
    data: str
    filename: str = ""
    content_type: str = _OTHER_TYPE


_file = msgspec.json.Decoder(_File)
_items = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)


class Form:
    """Collects fields; `close` gives all of it, once. `boundary` must occur in no field: it is random."""

    def __init__(self, boundary: str) -> None:
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._between = f"--{boundary}\r\n".encode()
        self._end = f"--{boundary}--\r\n".encode()
        self._parts: list[bytes] = []
        self._fields = 0

    def add(self, name: str, raw: Raw, level: int = 1) -> None:
        """Add a member of the payload. Raise ValueError for what no form can say."""
        if level == 1:
            _check(name)
        self._fields += 1  # also what is left out takes its time
        if self._fields > MAX_FIELDS:
            raise ValueError(f"a form of more than {MAX_FIELDS} fields")
        value = bytes(raw)
        kind = value[:1]
        if value == b"null":
            return
        if kind in (b"{", b"["):
            if level > MAX_LEVELS:
                raise ValueError(f"{name} is nested deeper than a form can say")
            if kind == b"[":
                for item in _items.decode(value):
                    self.add(f"{name}[]", item, level + 1)
            elif (found := _members.decode(value)).keys() & {"data", "filename"} == {"data", "filename"}:
                self._add_file(name, value)
            else:
                for key, inner in found.items():
                    _check(key)
                    self.add(f"{name}[{key}]", inner, level + 1)
            return
        self._head(name)
        self._parts += (_text.decode(value).encode() if kind == b'"' else value, b"\r\n")

    def close(self) -> bytes:
        """The body."""
        return b"".join([*self._parts, self._end])

    def _add_file(self, name: str, value: bytes) -> None:
        found = _file.decode(value)
        kind = found.content_type if _TYPE.fullmatch(found.content_type) else _OTHER_TYPE
        try:
            data = b64decode(found.data, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"data of the file {name} is no base64") from None
        self._head(
            name, f'; filename="{found.filename.translate(_BREAKS) or "file"}"\r\nContent-Type: {kind}'
        )
        self._parts += (data, b"\r\n")

    def _head(self, name: str, more: str = "") -> None:
        head = f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        self._parts += (self._between, head.encode(errors="replace"))


def _check(name: str) -> None:
    """Raise ValueError for what cannot be the name of a field."""
    if not name or _NO_NAME.search(name):
        raise ValueError(f"{name[:40]!r} cannot be the name of a field")
