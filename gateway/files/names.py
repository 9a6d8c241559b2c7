"""Names and ids of files. Pure."""

import re
from urllib.parse import quote

MAX_CHARS = 255
UNNAMED = "file"
_ID = re.compile(r"file-[0-9a-f]{32}")


def is_file_id(text: str) -> bool:
    """Return whether a text has the form of a file's id."""
    return _ID.fullmatch(text) is not None


def plain_name(name: str) -> str:
    """Return a name that databases and headers accept: the last part of a path, without control characters, of at most MAX_CHARS
    characters. It is never a path in the storage."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    text = "".join(character for character in last if character.isprintable()).strip()
    return text[:MAX_CHARS] or UNNAMED


def disposition(name: str) -> bytes:
    """Return the header Content-Disposition of a download by this name (RFC 6266): browsers save the file, and never show it."""
    plain = "".join(c if c.isascii() and c not in '"\\%' else "_" for c in name)
    header = f'attachment; filename="{plain}"'
    if plain != name:
        header += f"; filename*=UTF-8''{quote(name, safe='')}"
    return header.encode()
