"""The documents say what the program does: what can be generated is compared, what is named must exist."""

import functools
import importlib.metadata
import itertools
import re
import shlex
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlane import __version__
from fairlane.gateway.cli.main import app

ROOT = Path(__file__).parents[2]


def test_the_architecture_page_is_short_and_has_every_hook_with_its_features() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(page.split()) <= 1500
    rows = re.findall(r"^\| (`.+?) \|.*\| (.+) \|$", page.partition("## Hooks")[2], re.MULTILINE)
    shown = {hook: set(users.split(", ")) for hooks, users in rows for hook in re.findall(r"`(\w+)`", hooks)}
    attached: dict[str, set[str]] = {}
    for file in (ROOT / "queues" / "lua" / "features").glob("*.lua"):
        for hook in re.findall(r"hooks\.attach\('(\w+)'", file.read_text()):
            attached.setdefault(hook, set()).add(file.stem)
    assert shown == attached
    listed = (ROOT / "queues" / "lua" / "core" / "hooks.lua").read_text().partition("local hooks = {}")
    assert set(re.findall(r"(\w+) = \{\}", listed[2].partition("}\n\n")[0])) == set(shown)
    assert all(re.search(rf"\b{hook}\(", listed[0]) for hook in shown), "hooks.lua explains each"


@pytest.mark.parametrize(
    "command",
    [
        *(
            "serve",
            "demo",
            "config check",
            "status",
            "key create",
            "worker run",
            "worker start",
            "worker test",
        ),
        *("queue update", "queue list", "model update", "model list"),
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert len(result.output) > 200


def test_the_example_of_worker_run_is_shown_as_it_is() -> None:
    shown = CliRunner().invoke(app, ["worker", "run", "--help"]).output
    example = shown.partition("app.py with\n")[2].partition("is run with")[0]
    compile(textwrap.dedent(example), "app.py", "exec")


PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(ROOT / "docs").glob("*.md"),
    ROOT / "workers/PROTOCOL.md",
]


def test_links_between_documents_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text()
        for picture in re.findall(r'(?:src|srcset)="([^"]+)"', text):
            assert (page.parent / picture).exists(), f"{page.name}: {picture}"
        for target, anchor in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", text):
            if "://" in target:
                continue
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                there = file.read_text()
                heads = re.findall(r"^#+ (.*)$", there, re.MULTILINE)
                slugs = ["#" + re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
                slugs += [f"#{name}" for name in re.findall(r'<a id="(\w+)">', there)]
                assert anchor in slugs, f"{page.name}: {target}{anchor}"


def test_the_release_has_one_number_everywhere() -> None:
    assert importlib.metadata.version("fairlane") == __version__
    assert CliRunner().invoke(app, ["--version"]).output == f"fairlane {__version__}\n"


def test_the_words_that_are_ours_are_explained() -> None:
    explained = set(re.findall(r"\*\*([\w ]+)\*\*", (ROOT / "docs" / "concepts.md").read_text()))
    ours = {"task", "tier", "mode", "queue", "lane", "flow", "slot", "lease", "grant", "attempt", "replica"}
    assert ours | {"upstream", "throttled", "cooldown", "parked", "drain"} <= explained
    assert "(docs/concepts.md)" in (ROOT / "README.md").read_text()


def test_the_commands_of_the_documents_exist_with_their_options() -> None:
    """Every `fairlane …` line of a shell block is understood as far as its options go."""
    seen = 0
    helped = functools.cache(
        lambda *command: CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    )
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"(?<![./\w-])fairlane ((?!demo)[a-z].*)", block.replace("\\\n", " ")):
                words = shlex.split(line, comments=True)
                command = list(itertools.takewhile(lambda word: re.fullmatch(r"[a-z]+", word), words))
                shown = helped(*command)
                assert shown.exit_code == 0, line
                for option in (word for word in words if word.startswith("--")):
                    assert option in shown.output, f"{page.name}: {line}"
                seen += 1
    assert seen > 5
