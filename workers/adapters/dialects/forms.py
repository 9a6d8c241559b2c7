"""A payload as a form (`multipart/form-data`). Pure; the way here is `gateway/calls/media/forms.py`.

| in the payload | in the form |
|---|---|
| a text | a field |
| a number, true or false | its JSON as a field; null is left out |
| a list | a field `name[]` for each item |
| an object | a field `name[key]` for each member |
| `{"filename", "contentType", "data"}` | a file; `data` is base64 |
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import httpx2
import msgspec
from msgspec import Raw

from fairlane.workers.sdk.media import Upload

MAX_LEVELS = 4
MAX_FIELDS = 1024


def form_of(members: Mapping[str, Raw]) -> tuple[bytes, str]:
    """Return a form and its content type. Raise ValueError for what no form can say."""
    decoded = ((name, msgspec.json.decode(raw)) for name, raw in members.items())
    fields = chain.from_iterable(_fields(name, value) for name, value in decoded)
    found = list(islice(fields, MAX_FIELDS + 1))  # also what is left out takes its time
    if len(found) > MAX_FIELDS:
        raise ValueError(f"a form of more than {MAX_FIELDS} fields")
    files = [(name, value) for name, value in found if value is not None]
    request = httpx2.Request("POST", "http://upstream", files=files)
    return request.read(), request.headers["Content-Type"]


def _fields(name: str, value: Any, level: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a member, those that are left out as None."""
    if not isinstance(value, dict | list):
        text = value if isinstance(value, str) else msgspec.json.encode(value)
        yield name, None if value is None else (None, text)
    elif level > MAX_LEVELS:
        raise ValueError(f"{name} is nested deeper than a form can say")
    elif isinstance(value, list):
        for item in value:
            yield from _fields(f"{name}[]", item, level + 1)
    elif {"data", "filename"} <= value.keys():
        file = msgspec.convert(value, Upload)
        yield name, (file.filename or "file", file.data, file.content_type or "application/octet-stream")
    else:
        for key, inner in value.items():
            yield from _fields(f"{name}[{key}]", inner, level + 1)
