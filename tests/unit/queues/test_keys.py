"""The map of keys is whole, unambiguous, and what the scripts use."""

import re
from collections.abc import Iterator
from importlib.resources import files

from fairlane.queues.keys import KEYS, Keys, expand_keys, pool_prefix
from fairlane.queues.scripts import NAMES, SHARED, load_scripts


def test_names_and_patterns_are_unique() -> None:
    assert len({key.name for key in KEYS}) == len(KEYS)
    assert len({key.pattern for key in KEYS}) == len(KEYS)
    assert all(key.removed for key in KEYS), "each key has a remover"


def test_all_keys_of_a_pool_share_its_hash_tag() -> None:
    keys = Keys(pool_prefix(3))
    assert keys("task", id="x") == "fairlane:{3}:t:x"
    assert keys.channel("r").startswith("fairlane:{3}:")


def test_parts_that_look_like_others_make_different_keys() -> None:
    keys = Keys("")
    places = [("a:b", "c"), ("a", "b:c"), ("a:b:c", ""), ("é", "x"), ("e", "é:x")]
    assert len({keys("flow", queue="q", model=model, user=user) for model, user in places}) == len(places)


def test_lua_builds_the_same_names() -> None:
    assert expand_keys("call('DEL', key_task(id), key_busy(t.q, t.m, ARGV[1]), key_pool())") == (
        "call('DEL', (P .. 't:' .. id), (P .. 'u:' .. t.q .. ':' .. #t.m .. ':' .. t.m .. ':' .. ARGV[1]), (P .. 'pool'))"
    )


def test_scripts_name_only_keys_of_the_map_and_use_all_but_those_of_others() -> None:
    folder = files("fairlane.queues") / "lua"
    texts = [(folder / f"{name}.lua").read_text() for name in NAMES]
    texts += [(folder / "shared" / f"{part}.lua").read_text() for part in SHARED]
    used = set(re.findall(r"key_(\w+)\(", "\n".join(texts)))
    known = {key.name for key in KEYS}
    assert used <= known
    assert known - used == {"secret", "history", "clock", "ticket", "probe"}


def defined(lua: str) -> Iterator[tuple[str, str]]:
    """What a script defines at its top level, the shared parts too, and the pattern of a use beside the definition.

    Shared functions are members of `F`; the others, and all values, are locals.
    """
    for function in re.findall(r"^(?:F\.)?(\w+) = function\(", lua, re.MULTILINE):
        yield function, rf"\bF\.{function}\("
    for function in re.findall(r"^local function (\w+)", lua, re.MULTILINE):
        yield function, rf"(?<!function )\b{function}\("
    for values in re.findall(r"^local (\w+(?:, \w+)*) =", lua, re.MULTILINE):
        for value in values.split(", "):
            yield value, rf"(?s)\b{value}\b.*\b{value}\b"


def test_each_script_has_a_legend_and_only_the_parts_it_uses() -> None:
    for name, script in load_scripts().items():
        assert f"-- {name}: " in script.text
        assert "-- KEYS[1]" in script.text
        assert "-- returns  " in script.text
        parts = list(defined(script.text))
        assert len(parts) > 5, f"{name}: the parts are not found"
        for part, uses in parts:
            assert re.search(uses, script.text), f"{name} does not use {part}"
