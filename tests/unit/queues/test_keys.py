"""The map of keys is whole, unambiguous, and what the scripts use; and the scripts are what their files say."""

import re
from collections import Counter
from importlib.resources import files

import pytest
from hiredis import ReplyError
from tests.contract.store.store import World
from tests.support.direct import Connection, DirectLink
from tests.support.servers import Server

from fairlane.queues.keys import KEYS, MESSAGES, Keys, keys_in_lua, pool_prefix
from fairlane.queues.store.scripts import SHARED, load_scripts

FOLDER = files("fairlane.queues") / "lua"
PARTS = [f"shared/{part}.lua" for part in SHARED]
NAMES = list(load_scripts().functions)
SCRIPTS = [f"{name}.lua" for name in NAMES]


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
    texts = [(FOLDER / name).read_text() for name in PARTS + SCRIPTS]
    used = set(re.findall(r"\bkeys\.(\w+)\(", "\n".join(texts)))
    known = {key.name for key in KEYS}
    assert used <= known | {"channel"}
    assert known - used == {"secret", "history", "clock", "ticket", "database"}
    sent = set(re.findall(r"'(\w+)\\n'", "\n".join(texts)))
    assert sent == set(MESSAGES) - {"drain"}, "(that one an operator's call sends)"


def test_each_script_has_a_legend_and_each_shared_function_a_use() -> None:
    for name in NAMES:
        text = (FOLDER / f"{name}.lua").read_text()
        assert text.startswith(f"-- {name}: ")
        assert "-- KEYS[1]  prefix of the pool" in text
        assert "-- returns  " in text
    text = load_scripts().text
    named = Counter(re.findall(r"\w+", text))
    for declared, name in re.findall(r"^(local )?function (\w+)", text, re.MULTILINE):
        made = 1 if declared else 2  # else its name was declared before `do`
        assert named[name] > made, f"nobody uses {name}"


def test_a_line_in_an_error_is_a_line_of_a_file(world: World) -> None:
    library = load_scripts()
    lines = library.text.splitlines()
    for name in PARTS + SCRIPTS:
        for number, line in enumerate((FOLDER / name).read_text().splitlines(), 1):
            at = library.begins[library.files.index(name)] + number
            assert lines[at - 1] == line
            assert library.explain(f"user_function:{at}: no") == f"{name}:{number}: no"
    with pytest.raises(ReplyError, match=r"ERR read_log\.lua:\d+: attempt to"):
        world.link.run("read_log", "task")


def test_a_library_that_is_gone_is_loaded_again_and_one_that_is_there_is_not(any_server: Server) -> None:
    connection = Connection(any_server.socket_path)
    connection.call("FUNCTION", "FLUSH")
    for _ in range(2):
        link = DirectLink(connection, pool_prefix(), load_scripts())
        assert link.run("read_task", "nobody").result() == []
    connection.close()
