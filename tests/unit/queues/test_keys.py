"""The map of keys is whole, unambiguous, and what the scripts use; and the scripts are what their files say."""

import re
from collections import Counter
from importlib.resources import files

import pytest
from hiredis import ReplyError
from msgspec import msgpack
from tests.contract.store.store import World
from tests.support.direct import Connection, DirectLink
from tests.support.servers import Server

from fairlane.queues.keys import (
    ANY_ENDPOINT,
    ANY_MODEL,
    KEYS,
    MESSAGES,
    Keys,
    is_reserved,
    keys_in_lua,
    pool_prefix,
)
from fairlane.queues.store.scripts import load_scripts

FOLDER = files("fairlane.queues") / "lua"
FILES = [name for name in load_scripts().files if name.endswith(".lua")]
TEXTS = {name: (FOLDER / name).read_text() for name in FILES}
NAMES = list(load_scripts().functions)


def test_names_and_patterns_are_unique() -> None:
    assert len({key.name for key in KEYS}) == len(KEYS)
    assert len({key.pattern for key in KEYS}) == len(KEYS)
    assert all(key.removed for key in KEYS), "each key has a remover"


def test_all_keys_of_a_pool_share_its_hash_tag() -> None:
    keys = Keys(pool_prefix(3))
    assert keys("task", id="x") == "fairlane:{3}:task:x"
    assert keys.channel("r").startswith("fairlane:{3}:")


def test_parts_that_look_like_others_make_different_keys() -> None:
    keys = Keys("")
    places = [("a:b", "c"), ("a", "b:c"), ("a:b:c", ""), ("é", "x"), ("e", "é:x")]
    assert len({keys("flow", queue="q", model=model, user=user) for model, user in places}) == len(places)


def test_lua_builds_the_same_names(any_server: Server) -> None:
    keys = Keys(pool_prefix())
    parts = {part: f"<{part} é>" for key in KEYS for part in re.findall(r"\{#?(\w+)\}", key.pattern)}
    connection = Connection(any_server.socket_path)
    for key in KEYS:
        names = list(dict.fromkeys(re.findall(r"\{#?(\w+)\}", key.pattern)))
        lua = f"{keys_in_lua()}\nP = KEYS[1]\nreturn keys.{key.name}(unpack(ARGV))"
        built = connection.call("EVAL", lua, 1, keys.prefix, *(parts[name] for name in names))
        assert built.decode() == keys(key.name, **{name: parts[name] for name in names})
    connection.close()


def test_scripts_name_only_keys_of_the_map_and_use_all_but_those_of_others() -> None:
    text = "\n".join(TEXTS.values())
    used = set(re.findall(r"\bkeys\.(\w+)\(", text)) | {
        "task",
        "log",
        "request",
        "chain",
    }  # (`records.remove`)
    known = {key.name for key in KEYS}
    assert used <= known | {"channel"}
    assert known - used == {"secret", "history", "clock", "ticket", "database"}
    sent = set(re.findall(r"'(\w+)\\n'", text))
    assert sent == set(MESSAGES) - {"drain"}, "(that one an operator's call sends)"


def test_each_script_has_a_legend_and_each_function_a_use() -> None:
    text = "\n".join(TEXTS.values())
    for name in NAMES:
        legend = re.search(rf"^-- {name}: .*?^script\('{name}'", text, re.MULTILINE | re.DOTALL)
        assert legend, f"{name} has no legend"
        assert "-- returns   " in legend[0], f"nobody says what {name} returns"
    named = Counter(re.findall(r"\w+", text))
    for name in re.findall(r"^(?:local )?function (?:\w+\.)?(\w+)", text, re.MULTILINE):
        assert named[name] > 1 or name in ("begin", "flush"), f"nobody uses {name}"


def test_a_line_in_an_error_is_a_line_of_a_file(world: World) -> None:
    library = load_scripts()
    lines = library.text.splitlines()
    for name, text in TEXTS.items():
        for number, line in enumerate(text.splitlines(), 1):
            at = library.begins[library.files.index(name)] + number
            assert line in lines[at - 1]
            assert library.explain(f"user_function:{at}: no") == f"{name}:{number}: no"
    with pytest.raises(ReplyError, match=r"ERR scripts/read_log\.lua:\d+: attempt to"):
        world.link.run("read_log", msgpack.encode({"id": "task"}))


def test_a_library_that_is_gone_is_loaded_again_and_one_that_is_there_is_not(any_server: Server) -> None:
    connection = Connection(any_server.socket_path)
    connection.call("FUNCTION", "FLUSH")
    for _ in range(2):
        link = DirectLink(connection, pool_prefix(), load_scripts())
        assert len(link.run("read", msgpack.encode({"id": "nobody"})).result()) == 1
    connection.close()


def test_names_of_endpoints_are_reserved() -> None:
    assert is_reserved("http:image")
    assert is_reserved(ANY_ENDPOINT)
    assert not is_reserved("https")
    assert not is_reserved(ANY_MODEL)
