"""`tests/install-tools` installs what is missing and touches nothing else. The script is the real one; apt and systemd write down
what they are asked for."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "install-tools"
TOOLS = {"redis-server", "chromium-headless-shell", "node", "promtool", "psql", "nginx"}


class Machine:
    """A machine with some of the tools, some running services, and a record of what was done to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "record"
        self.record.touch()

    def command(self, name: str, script: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def run(self, *, tools: set[str], running: set[str] = frozenset(), root: bool = True) -> int:  # type: ignore[assignment]
        for tool in tools:
            self.command(tool, "exit 1")
        write_down = f'echo "${{0##*/}} $*" >> {self.record}'
        active = "|".join(running) or "-"
        self.command("id", f"echo {0 if root else 1000}")
        self.command("apt-get", write_down)
        self.command(
            "systemctl",
            f'[ "$1" = is-active ] && case "$3" in {active}) exit 0;; *) exit 3;; esac; {write_down}',
        )
        done = subprocess.run(
            ["/bin/sh", SCRIPT], env={"PATH": str(self.folder)}, capture_output=True, check=False, timeout=30
        )
        return done.returncode

    @property
    def asked(self) -> list[str]:
        return self.record.read_text().splitlines()

    @property
    def stopped(self) -> set[str]:
        return {line.split()[-1] for line in self.asked if line.startswith("systemctl stop")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_where_nothing_is_missing_nothing_is_done(machine: Machine) -> None:
    assert machine.run(tools=TOOLS, running={"redis-server", "prometheus"}) == 0
    assert machine.asked == []


def test_a_missing_tool_stops_no_service_that_was_there(machine: Machine) -> None:
    assert machine.run(tools=TOOLS - {"chromium-headless-shell"}, running={"redis-server", "prometheus"}) == 0
    assert machine.asked[-1].endswith(" chromium-headless-shell")
    assert machine.stopped == set()


def test_a_service_that_came_with_a_tool_is_stopped_and_no_other(machine: Machine) -> None:
    assert machine.run(tools=TOOLS - {"redis-server"}, running={"prometheus"}) == 0
    assert machine.stopped == {"redis-server"}


def test_a_running_service_whose_command_is_not_on_the_path_is_not_stopped(machine: Machine) -> None:
    assert machine.run(tools=TOOLS - {"promtool"}, running={"prometheus"}) == 0
    assert machine.stopped == set()


def test_without_root_nothing_is_installed_and_what_is_missing_is_named(machine: Machine) -> None:
    assert machine.run(tools=TOOLS - {"node"}, root=False) == 1
    assert machine.asked == []


def test_a_whole_browser_is_replaced_where_that_is_possible_and_else_will_do(machine: Machine) -> None:
    tools = TOOLS - {"chromium-headless-shell"} | {"chromium"}
    assert machine.run(tools=tools, root=False) == 0
    assert machine.run(tools=tools) == 0
    assert machine.asked[-1].endswith(" chromium-headless-shell")
