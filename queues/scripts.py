"""The Lua scripts: one file per transition, behind those of the shared functions that it uses."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from fairlane.queues.keys import closing, expand_keys

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
    "search",
    "follow",
    "page",
    "configure",
    "change",
    "offer",
    "present",
    "survey",
)
SHARED = (
    "base",
    "service",
    "lanes",
    "choosing",
    "waking",
    "granting",
    "ending",
    "placing",
    "refusing",
    "retrying",
    "ruling",
    "retaining",
)
"""The shared parts, in the order in which they may refer to each other."""

# fmt: off
SELDOM = frozenset((
    "account_of_end", "apply_rules", "choose_lane", "count_of_user", "dequeue", "enqueue_by_name", "expected_ms",
    "expected_output", "forget_excess", "go_on_ruling", "hold_name", "lane_idles", "lift_lane", "name_held_until",
    "note_lift", "own_in_queue", "paced_until", "park", "refund", "repeat_grants", "settle_pace", "spend", "stand",
    "stand_aside", "startable", "starts_at_once", "unpark",
))
# fmt: on
"""Shared functions that most calls do without: they are made together, when the first of them is called."""
INLINE = ("num", "whole")
"""Shared functions of one value whose expression stands where they are called, as they are called so often."""

_REDIS_CLOCK = """local function clock_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
"""
_TEST_CLOCK = """local function clock_us() return tonumber(redis.call('GET', key_clock())) end
"""
_DEFINES = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)")
_COMMENT = re.compile(r"\s*--.*$", re.MULTILINE)
_WORD = re.compile(r"\b[A-Za-z_]\w*")


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
    shared = [_TEST_CLOCK if test_clock else _REDIS_CLOCK]
    shared += [(folder / "shared" / f"{part}.lua").read_text() for part in SHARED]
    definitions = [definition for text in shared for definition in _definitions(text)]
    scripts = {}
    for name in NAMES:
        text = _assemble(definitions, (folder / f"{name}.lua").read_text())
        scripts[name] = Script(name, text, sha1(text.encode()).hexdigest())  # noqa: S324 - Redis names scripts by it
    return scripts


def _definitions(text: str) -> Iterator[tuple[frozenset[str], str]]:
    """The top-level definitions of a shared part: the names each defines, and its text."""
    lines: list[str] = []
    for line in [*_COMMENT.sub("", text).splitlines(), "local"]:
        if line.startswith("local") and lines:
            block = "\n".join(lines)
            match = _DEFINES.match(block)
            assert match, block
            yield frozenset(match.group(1).split(", ")), block
            lines = []
        if line:
            lines.append(line)


def _assemble(definitions: list[tuple[frozenset[str], str]], body: str) -> str:
    """`body` behind the definitions that it needs, directly or through others.

    Lua makes the functions anew at every call, which takes a tenth of a script's time. So they become members of one table: as
    locals that refer to each other they would cost twice that, since Lua looks for each reference among all that are referred to
    whenever a function is made. And what is needed seldom, or is called all the time, is left out of it.
    """
    wanted = set(_WORD.findall(_COMMENT.sub("", body)))
    values: list[str] = []
    functions: dict[str, str] = {}
    inline: dict[str, str] = {}
    for names, text in reversed(definitions):
        if names & wanted:
            wanted.update(_WORD.findall(text))
            (name, *_) = names
            if name in INLINE:
                inline[name] = text.removeprefix(f"local function {name}")
            elif text.startswith("local function") and name != "clock_us":  # (which the values need)
                functions[name] = text.removeprefix(f"local function {name}")
            else:
                values.append(text)
    members = ",\n".join(f"{name} = function{text}" for name, text in functions.items() if name not in SELDOM)
    seldom = "\n".join(f"F.{name} = function{text}" for name, text in functions.items() if name in SELDOM)
    if seldom:
        members = f"setmetatable({{\n{members}\n}}, {{ __index = function(F, name)\n{seldom}\nreturn F[name]\nend }})"
    else:
        members = f"{{\n{members}\n}}"
    rest = f"F = {members}\n{body}"
    for name in functions:
        rest = re.sub(rf"(?<![\w.:]){name}\(", f"F.{name}(", rest)
    lua = expand_keys("\n".join(["local P, F = KEYS[1]", *reversed(values), rest]))
    for name, text in inline.items():
        lua = _inlined(lua, name, text)
    return lua


def _inlined(lua: str, name: str, function: str) -> str:
    """`lua` with the expression of a function of one value instead of each call."""
    parts = re.fullmatch(r"\((\w+)\) return (.+) end\s*", function)
    assert parts, function
    before, after = re.split(rf"\b{parts[1]}\b", parts[2])
    while call := re.search(rf"\b{name}\(", lua):
        end = closing(lua, call.end())
        lua = f"{lua[: call.start()]}({before}({lua[call.end() : end]}){after}){lua[end + 1 :]}"
    return lua
