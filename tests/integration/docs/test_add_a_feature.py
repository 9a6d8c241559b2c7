"""The example of "Add a feature" does what its page says: its three files are taken from the page and run."""

import shutil
import sys
import types
from pathlib import Path

import pytest
from tests.contract.store.store import Store, World
from tests.support.direct import DirectLink

from fairlane.queues.store import scripts

from .blocks import ROOT, blocks


def module(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Import a file of the page by this name, until the test is over."""
    made = types.ModuleType(name)
    exec(compile(text, name, "exec"), made.__dict__)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_the_example_counts_slow_tasks(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {block.note.removeprefix("file "): block.text for block in blocks("docs/add-a-feature.md")}
    shutil.copytree(ROOT / "queues" / "lua", tmp_path / "lua")
    (tmp_path / "lua" / "features" / "slow.lua").write_text(shown["slow.lua"])
    monkeypatch.setattr(scripts, "files", lambda _: tmp_path)
    library = scripts.load_scripts.__wrapped__(test_clock=True, features=(*scripts.FEATURES, "slow"))
    world.link = DirectLink(world.connection, world.prefix, library)
    module("fairlane.gateway.slow.counts", shown["counts.py"], monkeypatch)
    test = module("test_slow", shown["test_slow.py"], monkeypatch)
    test.test_slow_tasks_are_counted(Store(world))
    world.check()
