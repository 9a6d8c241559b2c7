"""Which commands the user of a connection may run, as Redis is asked at each connect."""

import re
from importlib.resources import files

import pytest
from msgspec import msgpack
from tests.contract.store.store import World

from fairlane.queues.replies import decode_map
from fairlane.queues.store.link import COMMANDS
from fairlane.queues.store.scripts import load_scripts

SCRIPT = (files("fairlane.queues") / "lua" / "scripts" / "check_rights.lua").read_text()
NEEDED = sorted(COMMANDS | load_scripts().commands)


def arity(world: World, command: str) -> int:
    """How many words a command has; at least as many, if it is negative."""
    name, _, sub = command.lower().partition(" ")
    (info,) = world.call("COMMAND", "INFO", name)
    if sub:
        (info,) = [one for one in info[9] if one[0].decode() == f"{name}|{sub}"]
    return int(info[1])


@pytest.mark.parametrize("command", NEEDED)
def test_each_is_asked_for_with_as_many_arguments_as_it_takes(world: World, command: str) -> None:
    """Redis from 8.0 on refuses to say anything of others."""
    counts = re.search(r"COUNTS = \{ ([\d, ]+) \}", SCRIPT)
    assert counts
    words = {len(command.split()) + int(count) for count in counts[1].split(",")}
    takes = arity(world, command)
    assert takes in words if takes > 0 else max(words) >= -takes


def test_nothing_is_forbidden_to_the_default_user(world: World) -> None:
    (reply,) = world.link.run("check_rights", msgpack.encode({"commands": NEEDED})).result()
    assert not decode_map(reply)["forbidden"]
