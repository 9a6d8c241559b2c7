"""The documents say what the program does: what can be generated is compared, what is named must exist."""

import functools
import importlib.metadata
import itertools
import re
import shlex
import textwrap
from pathlib import Path

import pytest
from tests.hostile.document import application
from typer.testing import CliRunner

from fairlane import __version__
from fairlane.gateway.api.events import DATA, EVENTS, data_of
from fairlane.gateway.cli.main import app
from fairlane.gateway.core.spec import OWN_FIELDS
from fairlane.gateway.settings import settings_table
from fairlane.queues.failures import FAILURES, Category

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text()
NATIVE_OPTIONS = [f"| `{name}` |" for name in ("model", "stream", *OWN_FIELDS)]


def test_the_settings_page_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert settings_table().strip() in page, (
        "run: fairlane config check --markdown, and put it into docs/settings.md"
    )


def test_the_api_page_names_every_call() -> None:
    calls = API.partition("## All calls")[2].partition("\n## ")[0]
    for _, path in application().calls:
        beginning = path.partition("{")[0]
        unnamed = path in ("/api/sse-stream", "/favicon.ico", "/static/{file}")
        assert unnamed or beginning.rstrip("/") in calls, path


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


def test_the_readme_sells_and_starts_and_no_more() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 600
    assert readme.count("](") <= 15
    assert "make run" in readme
    assert "make test" in readme


def test_the_api_page_names_every_native_call_and_option() -> None:
    for pattern in ("/api/openai", "/api/tasks", "/api/sse-stream", "/api/me", *NATIVE_OPTIONS):
        assert pattern in API, pattern
    for _, path in application().calls:
        if path.startswith("/api/task/"):
            assert path.replace("{task_id}", "{taskId}") in API


def test_the_api_page_has_every_event_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` (\|.*)\|$", API.partition("## Errors")[0], re.MULTILINE))
    for name, event_id in EVENTS.items():
        assert (rows[name].split("|")[1].strip() != "") is (event_id is not None), name
        for kind in data_of(name):
            for field in DATA[kind]["properties"].keys() - {"taskId", "ts"}:
                assert f"`{field}`" in rows[name], (name, field)


def test_the_api_page_has_every_code_and_its_status() -> None:
    rows = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \| (\d+) \| `([a-z_]+)` \|", API, re.MULTILINE)
    told = {
        code: (int(status), category)
        for codes, status, category in rows
        for code in re.findall(r"[A-Z_]+", codes)
    }
    elsewhere = {"UNAUTHORIZED", "MODEL_NOT_FOUND"}
    assert told == {
        code: (row.openai, row.category) for code, row in FAILURES.items() if code not in elsewhere
    }
    categories = API.partition("| category | cause |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z_]+)` \|", categories, re.MULTILINE) == list(Category)
    renamed = set(
        re.findall(r"`([a-z_]+)`\s\(`([A-Z_]+)`\)", API.partition("## Errors")[2].partition("```")[0])
    )
    assert renamed == {(row.code, code) for code, row in FAILURES.items() if row.code != code}
    source = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    operators = {"QUEUE_NOT_FOUND", "WORKER_NOT_FOUND", "REPLICA_SILENT", "AUDIT_MISSING", "KEY_NOT_FOUND"}
    operators |= {"DATABASE_UNAVAILABLE", "GRANT_EXISTS", "UPSTREAM_NOT_FOUND", "TOO_MANY_UPSTREAMS"}
    operators |= {"OVERRIDE_CONFLICT", "OVERRIDE_PROMOTED", "OVERRIDE_NOT_FOUND", "TOO_MANY_OVERRIDES"}
    operators |= {"ENDPOINT_CONFIGURED", "ENDPOINT_EXISTS", "TOO_MANY_ENDPOINTS"}
    for code in set(re.findall(r'ApiError\(\s*\d+, "([A-Z_]+)"', source)) - operators:
        assert f"`{code}`" in API, code


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
                heads = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                slugs = ["#" + re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
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
