"""Names of files, as callers give them and as they are told again, and how ids look. Pure."""

import re
from urllib.parse import quote

MAX_CHARS = 255
UNNAMED = "file"
_ID = re.compile(r"file-[0-9a-f]{32}")


def is_file_id(text: str) -> bool:
    """Whether a gateway may have made this id."""
    return _ID.fullmatch(text) is not None


def plain_name(name: str) -> str:
    """A name without what no database or header can hold: the last part of a path, without control characters, not longer than
    MAX_CHARS. Nothing is ever stored under it."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    text = "".join(character for character in last if character.isprintable()).strip()
    return text[:MAX_CHARS] or UNNAMED


def disposition(name: str) -> bytes:
    """The header Content-Disposition of a download by this name (RFC 6266): browsers save it, and show nothing of it."""
    plain = "".join(c if c.isascii() and c not in '"\\%' else "_" for c in name)
    header = f'attachment; filename="{plain}"'
    if plain != name:
        header += f"; filename*=UTF-8''{quote(name, safe='')}"
    return header.encode()
