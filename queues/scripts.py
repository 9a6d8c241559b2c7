"""The Lua scripts: one file per transition, each behind the shared parts that its `uses:` line names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from fairlane.queues.keys import lua_builders

NAMES = (
    "submit",
    "take",
    "append",
    "finish",
    "requeue",
    "cancel",
    "renew",
    "sweep",
    "position",
    "follow",
    "configure",
    "offer",
)

_REDIS_CLOCK = """local function clock_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
"""
_TEST_CLOCK = """local function clock_us() return tonumber(redis.call('GET', key_clock())) end
"""
_USES = re.compile(r"^-- uses: (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the SHA-1 by which EVALSHA calls it."""

    name: str
    text: str
    sha: str


@cache
def load_scripts(*, test_clock: bool = False) -> Mapping[str, Script]:
    """All scripts by name. With `test_clock` they read the time from a key instead of the server, for simulations."""
    folder = files("fairlane.queues") / "lua"
    scripts = {}
    for name in NAMES:
        body = (folder / f"{name}.lua").read_text()
        uses = _USES.search(body)
        parts = ["base", *(uses.group(1).split() if uses else [])]
        shared = [(folder / "shared" / f"{part}.lua").read_text() for part in parts]
        head = "local P = KEYS[1]\n" + lua_builders() + (_TEST_CLOCK if test_clock else _REDIS_CLOCK)
        text = head + "\n".join([*shared, body])
        scripts[name] = Script(name, text, sha1(text.encode()).hexdigest())  # noqa: S324 - Redis names scripts by it
    return scripts
