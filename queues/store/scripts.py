"""The Lua scripts: one library of Redis functions, made of whole files: the shared parts, then one file per transition.

What a library defines is made once, when it is loaded, and a call pays for nothing that it does not use. Its name is a hash of
its text, so two releases of Fairlane may use one Redis, each with its own library. A replica that connects removes the
others, and
loads its own again if that is gone, once for all calls under way. The files are not changed, so a line number in an error is a
line of a file: `Library.explain` returns which.
"""

import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from fairlane.queues.failures import failures_in_lua
from fairlane.queues.idempotency import idempotency_in_lua
from fairlane.queues.keys import keys_in_lua

CORE = (
    "records",
    "models",
    "hooks",
    "slots",
    "lanes",
    "eligible",
    "waking",
    "payloads",
    "log",
    "granting",
    "retention",
    "outbox",
    "ending",
    "placing",
    "admission",
    "retrying",
    "gaps",
    "expiry",
    "tidying",
    "settings",
)
"""The modules of the core, in the order in which they may refer to each other; each file is one, and named as it is."""

FEATURES: tuple[str, ...] = (
    "idempotency",
    "overrides",
    "upstreams",
    "pacing",
    "limits",
    "running",
    "credits",
    "tokens",
    "fallback",
    "archive",
    "chains",
    "permits",
    "adaptive",
)
"""The features, in the order in which their hooks are called."""

LIBRARIES = "fairlane_"
"""How the names of all releases' libraries begin."""

CLAMP = """-- The server's time, us. Where its clock is set back, time continues from the latest that a script has seen.
local latest, ahead = 0, 0
local function clamped(us)
  if us + ahead < latest then ahead = latest - us end
  latest = us + ahead
  return latest
end
"""
_REDIS_CLOCK = f"""{CLAMP}local function clock_us()
  local t = redis.call('TIME')
  return clamped(t[1] * 1000000 + t[2])
end
"""
_TEST_CLOCK = """local function clock_us() return tonumber(redis.call('GET', keys.clock())) end
"""
_PLACE = re.compile(r"@?user_function:(\d+)")
_SCRIPT = re.compile(r"^ *script\('(\w+)'", re.MULTILINE)
_CALL = re.compile(r"\bcall\('(\w+)'(?:, '(USAGE)')?")


@dataclass(frozen=True, slots=True)
class Library:
    """The text that Redis loads, and how to read what it says of it."""

    name: str
    text: str
    files: Sequence[str]
    """The files that it is made of, in their order."""
    begins: Sequence[int]
    """The line of the text before the first of each file."""
    commands: frozenset[str]
    """The commands that the scripts run; a subcommand follows behind a space."""
    functions: Mapping[str, str]
    """By script, the name of the function that it is."""

    def explain(self, error: str) -> str:
        """An error's words with the files' lines instead of the text's."""

        def place(match: re.Match[str]) -> str:
            line = int(match.group(1))
            at = bisect(self.begins, line - 1) - 1
            return f"{self.files[at]}:{line - self.begins[at]}"

        return _PLACE.sub(place, error)


@cache
def load_scripts(*, test_clock: bool = False, features: tuple[str, ...] = FEATURES) -> Library:
    """Return the library with the scripts of the core and of these features.

    With `test_clock` they read the time from a key instead of the server, for simulations.
    """
    folder = files("fairlane.queues") / "lua"

    def module(kind: str, name: str) -> tuple[str, str]:
        text = (folder / kind / f"{name}.lua").read_text()
        return f"{kind}/{name}.lua", f"local {name} = (function() {text}end)()\n"

    parts = [("keys.py", keys_in_lua()), ("idempotency.py", idempotency_in_lua())]
    parts += [("failures.py", failures_in_lua())]
    parts += [("scripts.py", _TEST_CLOCK if test_clock else _REDIS_CLOCK)]
    parts += [("core/base.lua", (folder / "core" / "base.lua").read_text())]
    parts += [module("core", name) for name in CORE]
    parts += [module("features", name) for name in features]
    scripts = sorted(file.name for file in (folder / "scripts").iterdir() if file.name.endswith(".lua"))
    parts += [(f"scripts/{name}", f"do {(folder / 'scripts' / name).read_text()}end\n") for name in scripts]
    body = "".join(text for _, text in parts)
    name = LIBRARIES + sha1(body.encode()).hexdigest()[:12]  # noqa: S324 - distinguishes releases
    head = f"#!lua name={name}\nlocal LIBRARY = '{name}'\n"
    # so that modules can ask for one that is not loaded: Redis forbids to read an unknown global
    head += "".join(f"local {name}\n" for name in FEATURES if name not in features)
    begins, line = [], head.count("\n")
    for _, text in parts:
        begins.append(line)
        line += text.count("\n")
    commands = frozenset(f"{command} {sub}".rstrip() for command, sub in _CALL.findall(body))
    functions = {script: f"{name}_{script}" for script in _SCRIPT.findall(body)}
    return Library(name, head + body, [file for file, _ in parts], begins, commands, functions)
