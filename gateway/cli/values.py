"""NAME=VALUE arguments, as JSON of a request."""

import datetime
import os
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from fairlane.gateway.cli.client import stop
from fairlane.gateway.settings.units import UNITS
from fairlane.queues.clock import now_ms

_DURATION = re.compile(r"(\d{1,6})(s|m|h|d)")
_LISTS = frozenset({"models", "scopes", "fallbacks", "methods", "headers", "allow_private", "keys", "tiers"})
_TEXTS = frozenset({"tier", "user_from", "note", "of", "per", "otherwise", "budget"})
_TIMES = frozenset({"expires", "until"})


def read_values(values: Iterable[str], *, dotted: bool = False) -> dict[str, Any]:
    """Return `tier=paid limits.max_running=3 models=a,b` as JSON has it; null stands for the default.

    `env:NAME` is the value of an environment variable. Names with dots stay names if `dotted`, and are objects otherwise.
    """
    body: dict[str, Any] = {}
    for text in values:
        path, equals, value = text.partition("=")
        path, value = path.strip(), value.strip()
        if not equals or not path or not value:
            stop(f"{text!r} is not NAME=VALUE; write NAME=null for the default")
        *parts, name = path.split(".")
        into = body
        for part in parts if not dotted else ():
            into = into.setdefault(part, {})
            if not isinstance(into, dict):
                stop(f"{part} is given twice")
        key = path if dotted else name
        if key in into:
            stop(f"{path} is given twice")
        into[key] = None if value == "null" else _value(name, value)
    return body


def _value(name: str, text: str) -> Any:
    if text.startswith("env:"):
        variable = text.removeprefix("env:")
        return os.environ.get(variable) or stop(f"the environment variable {variable} is not set")
    if name in _TEXTS:
        return text
    if name in _TIMES:
        return read_time(name, text)
    if name in _LISTS and not text.startswith("["):
        return [part.strip() for part in text.split(",")]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def read_duration(name: str, text: str) -> int:
    """Return a duration such as 30m, 24h or 0, in ms."""
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text) or stop(
        f"{name} must be a duration such as 30m, 24h or 7d, or 0; got {text!r}"
    )
    return int(found[1]) * UNITS["ms"][found[2]]


def read_time(name: str, text: str) -> int:
    """Return a point in time in ms: a duration from now, or a date or time in UTC."""
    if _DURATION.fullmatch(text):
        return now_ms() + read_duration(name, text)
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        stop(
            f"{name} must be a duration from now such as 12h or 30d, or a date or time (UTC) such as 2027-01-31T22:00, or null; "
            f"got {text!r}"
        )
    return int((found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp() * 1000)
