"""The command line: what it prints, how it fails, and what it does not import."""

import hashlib
import hmac
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.hostile.document import whole
from tests.support import prepared
from typer.testing import CliRunner, Result

from fairlane import __version__
from fairlane.gateway.cli import main as cli
from fairlane.gateway.cli.client import base_url
from fairlane.gateway.cli.commands import COMMANDS, Command
from fairlane.gateway.cli.tables import Column
from fairlane.gateway.cli.values import read_values
from fairlane.gateway.settings import Settings, SettingsError

UNHEALTHY = "http://gpu-2:8000/v1/models: unreachable " + "x" * 100
STATE: dict[str, Any] = {
    "queues": [
        {
            "queue": "paid_stream",
            "weight": 8.0,
            "waiting": 3,
            "running": 2,
            "maxLength": 1000,
            "oldestWaitMs": 4100,
            "paused": True,
            "overrides": {"paused": True},
        }
    ],
    "models": [
        {
            "model": "demo-fast",
            "running": 2,
            "limit": None,
            "waiting": 3,
            "workers": 1,
            "slots": 2,
            "paused": False,
        },
        {"model": "gone", "running": 0, "waiting": 4, "workers": 0, "slots": 0, "unserved": True},
    ],
    "now": 1_000_000_000,
    "workers": [
        {
            "workerId": "w1",
            "name": "[red]gpu\x1b[31m-1",
            "replica": "r1",
            "models": ["demo-fast"],
            "slots": 2,
            "running": 2,
            "heartbeatAgeMs": 3200,
            "taskSilentMs": 132_000,
            "draining": True,
            "tags": {"quirks": "stream_options=omit"},
        },
        {
            "workerId": "w2",
            "name": "gpu-2",
            "models": ["demo-fast"],
            "slots": 2,
            "running": 0,
            "unhealthy": UNHEALTHY,
        },
    ],
    "counts": {"queued": 3, "executing": 2, "completed": 70, "failed": 1, "cancelled": 0},
}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fairlane(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "120", **environ})


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    return subprocess.run(
        prepared.command(*arguments), capture_output=True, text=True, timeout=60, check=False
    )


def test_version_is_the_packages() -> None:
    assert fairlane("--version").output == f"fairlane {__version__}\n"


@pytest.mark.parametrize("command", ["serve", "demo", "config", "status", "queue", "model", "key", "worker"])
def test_every_command_is_mounted_and_has_help(command: str) -> None:
    assert command in fairlane("--help").output
    assert fairlane(command, "--help").exit_code == 0


def test_an_unknown_command_is_a_mistake_with_a_suggestion() -> None:
    answer = fairlane("queu", "list")
    assert answer.exit_code == 2
    assert "No such command 'queu'" in answer.output
    assert "queue" in answer.output


def test_worker_commands_do_not_import_the_server() -> None:
    script = (
        "import sys; sys.argv = ['fairlane', 'worker', '--help']\n"
        "from fairlane.gateway.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "pure = ('fairlane.queues.logs', 'fairlane.queues.failures')\n"
        "print([m for m in ('uvicorn', 'starlette', 'redis', 'fairlane.gateway.serve.server') if m in sys.modules]"
        " + [m for m in sys.modules if m.startswith('fairlane.queues.') and not m.startswith(pure)])"
    )
    answer = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_check_shows_settings_in_force_without_secrets() -> None:
    Path("fairlane.yaml").write_text("port: 81\nredis_url: redis://:hunter2@db/0\n")
    answer = fairlane("config", "check", FAIRLANE_LEASE="20s", TASK_TIMEOUT_MS="x")
    assert answer.exit_code == 0
    assert re.search(r"^port +81", answer.stdout, re.MULTILINE)
    assert re.search(r"^lease +20s +15s +FAIRLANE_LEASE", answer.stdout, re.MULTILINE)
    assert "drain" not in answer.stdout, "it has its default"
    assert re.search(r"^drain +30s +30s +default", fairlane("config", "check", "--all").stdout, re.MULTILINE)
    assert "hunter2" not in answer.output
    assert "TASK_TIMEOUT_MS='x' is ignored" in answer.stderr


def test_check_says_who_gets_in() -> None:
    said = fairlane("config", "check")
    assert said.exit_code == 0
    assert "no keys are configured: every program on this machine may do what an admin may" in said.stderr
    sha = "a" * 64
    made = {"keys": [{"id": "a", "sha256": sha}], "workers": [{"id": "gpu", "sha256": "b" * 64}]}
    Path("fairlane.yaml").write_text(json.dumps(made))
    closed = fairlane("config", "check")
    assert (closed.exit_code, closed.stderr) == (0, "")


def test_check_names_all_mistakes_and_exits_with_2() -> None:
    Path("fairlane.yaml").write_text("prot: 81\nlease: soon\n")
    answer = process("config", "check")
    assert answer.returncode == 2
    assert answer.stdout == ""
    lines = answer.stderr.splitlines()
    assert "fairlane: fairlane.yaml: prot: unknown setting; did you mean port?" in lines
    assert len(lines) == 2


def test_serve_refuses_bad_settings_before_it_starts() -> None:
    answer = process("serve", "--port", "70000", "--config", "missing.yaml")
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        "fairlane: missing.yaml: there is no such file",
        "fairlane: --port: Input should be less than or equal to 65535; got 70000",
    ]


def test_unexpected_error_is_one_sentence_unless_a_traceback_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.delenv("FAIRLANE_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "unexpected RuntimeError: a bug" in line
    monkeypatch.setenv("FAIRLANE_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        cli.main()


def test_serve_hands_settings_and_a_way_to_read_them_again_to_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def run(settings: Settings, reload: Any) -> int:
        seen.append(settings)
        Path("fairlane.yaml").write_text("port: 9\nmax_queue_length: 7\n")
        seen.append(reload())
        Path("fairlane.yaml").write_text("prot: 9\n")
        with pytest.raises(SettingsError):
            reload()
        return 5

    logged: list[tuple[str, str]] = []
    monkeypatch.setattr("fairlane.gateway.serve.start.run", run)
    monkeypatch.setattr("fairlane.gateway.cli.serve.configure_logging", lambda *how: logged.append(how))
    answer = fairlane(
        "serve", "--port", "0", "--log-format", "json", "--data-dir", "d", FAIRLANE_PROCESSES="2"
    )
    assert answer.exit_code == 5
    first, again = seen
    assert (first.port, first.log_format, first.data_dir, first.processes) == (0, "json", Path("d"), 2)
    assert (again.port, again.max_queue_length) == (0, 7)
    assert logged[0] == ("json", "info")


def test_new_key_can_be_pasted_into_the_file() -> None:
    answer = fairlane("key", "create", "acme", "tier=paid", "scopes=admin", "--print")
    assert answer.exit_code == 0
    found = re.search(r"fl_acme_[A-Za-z0-9_-]{43}", answer.stdout)
    assert found
    pasted = answer.stdout.partition("In fairlane.yaml:\n")[2]
    settings = Settings.model_validate(yaml.safe_load(pasted))
    [key] = settings.keys
    assert (key.id, key.tier, key.admin, key.delegating) == ("acme", "paid", True, False)
    assert key.sha256 == hashlib.sha256(found[0].encode()).hexdigest()
    assert answer.stdout.count(found[0]) == 1


@pytest.mark.parametrize("arguments", [["a b"], ["x" * 65], ["a", "tier=a,b"], ["--worker", "scopes=admin"]])
def test_unusable_names_of_keys_are_refused(arguments: list[str]) -> None:
    answer = fairlane("key", "create", "--print", *arguments)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1


@pytest.fixture
def admin_server() -> Iterator[str]:
    """Answers like a gateway with one admin key, `letmein`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] == "Bearer scraper":
                self._answer(403, {"error": "This call needs a key with the scope viewer or admin"})
                return
            known = self.headers["Authorization"] == "Bearer letmein" and self.path == "/api/admin/overview"
            self._answer(200 if known else 401, STATE if known else {"error": "no"})

        def do_PATCH(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "bad" in given:
                self._answer(400, {"error": "bad is no setting of a queue", "code": "INVALID_REQUEST"})
            else:
                changed = {name: {"before": None, "after": value} for name, value in given.items()}
                self._answer(200, {"path": self.path, "changed": changed})

        def _answer(self, status: int, answer: object) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_status_prints_problems_and_tables(admin_server: str) -> None:
    answer = fairlane(
        "status", "--gateway", f"http://{admin_server}", FAIRLANE_API_KEY="letmein", COLUMNS="300"
    )
    assert answer.exit_code == 0
    rows = [row.split() for row in answer.stdout.splitlines()]
    for row in (
        ["paid_stream", "8", "3", "2", "4.1s", "1000", "-", "true*"],
        ["demo-fast", "2", "-", "3", "1", "2", "false"],
        [
            "[red]gpu[31m-1",
            "w1",
            "r1",
            "2",
            "2",
            "2m12s",
            "demo-fast",
            "3.2s",
            "true",
            "-",
            "stream_options=omit",
        ],
    ):
        assert row in rows
    assert "\x1b" not in answer.stdout
    for problem in (
        "4 tasks wait for gone",
        f"gpu-2 is unhealthy: {UNHEALTHY}",
        "a task on [red]gpu[31m-1 has shown",
    ):
        assert problem in answer.stdout


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["tier=paid", "weight=2.5", "scopes=admin"], {"tier": "paid", "weight": 2.5, "scopes": ["admin"]}),
        (["models=a, b/c,*"], {"models": ["a", "b/c", "*"]}),
        (['models=["a,b"]'], {"models": ["a,b"]}),
        (["note=5", "tier=null"], {"note": "5", "tier": None}),
        (["expires=2030-01-31"], {"expires": 1_896_048_000_000}),
        (["expires=2030-01-31T01:00+01:00"], {"expires": 1_896_048_000_000}),
        (
            ["limits.requests_per_minute=5", "limits.max_running=null", "user_limits.max_waiting=2"],
            {"limits": {"requests_per_minute": 5, "max_running": None}, "user_limits": {"max_waiting": 2}},
        ),
        (["quota.budget=12.340000000000000001"], {"quota": {"budget": "12.340000000000000001"}}),
        (["quota=null", "other=x"], {"quota": None, "other": "x"}),
        (["set_headers.A=env:SECRET"], {"set_headers": {"A": "s3"}}),
    ],
)
def test_values_become_json(words: list[str], body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3")
    assert read_values(words) == body


def test_values_of_an_override_keep_their_dotted_names() -> None:
    assert read_values(["tiers.paid.fallbacks=a,b"], dotted=True) == {"tiers.paid.fallbacks": ["a", "b"]}


def test_a_change_is_sent_and_printed(admin_server: str) -> None:
    change = ("model", "update", "org/model a", "concurrency=8", "paused=false", "--gateway", admin_server)
    rows = [row.split() for row in fairlane(*change).stdout.splitlines()]
    assert ["concurrency", "-", "8"] in rows
    assert ["paused", "-", "false"] in rows
    assert json.loads(fairlane(*change, "--json").stdout)["path"] == "/api/admin/models/org%2Fmodel%20a"


@pytest.mark.parametrize(
    "arguments",
    [
        ["key", "update", "b", "tier"],
        ["key", "update", "b", "tier="],
        ["key", "update", "b", "tier=a", "tier=b"],
        ["key", "update", "b", "limits=null", "limits.a=2"],
        ["key", "update", "b", "limits.a=2", "limits=null"],
        ["key", "update", "b", "expires=soon"],
        ["key", "update", "b", "note=env:NO_SUCH_VARIABLE"],
        ["key", "rotate", "b", "--keep", "long"],
        ["queue", "update", "free_batch", "bad=1"],
        ["status", "--gateway", "ftp://h"],
        ["status", "--gateway", "127.0.0.1:1"],
        ["status", "--api-key", "fl_ops_…"],
        ["status"],
        ["status", "--api-key", "scraper"],
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(admin_server: str, arguments: list[str]) -> None:
    answer = fairlane(*arguments, FAIRLANE_GATEWAY=admin_server)
    assert (answer.exit_code, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith("fairlane: ")


def test_status_as_json_is_the_gateways_answer(admin_server: str) -> None:
    answer = fairlane("status", "--json", "--gateway", f"ws://{admin_server}/ws", FAIRLANE_API_KEY="letmein")
    assert json.loads(answer.stdout) == STATE


def has(document: Any, schema: Any, path: list[str]) -> bool:
    """Return whether an object, one of a union, or the elements of a list have a member. An object without a schema has any."""
    if reference := schema.get("$ref"):
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    if parts := [schema["items"]] if "items" in schema else schema.get("anyOf"):
        return any(has(document, part, path) for part in parts)
    if not path or "properties" not in schema:
        return not path or schema.get("type") == "object"
    return path[0] in schema["properties"] and has(document, schema["properties"][path[0]], path[1:])


def test_each_column_of_a_list_is_a_member_of_its_calls_answer() -> None:
    for command in [one for one in COMMANDS.values() if isinstance(one, Command) and one.columns]:
        answer = whole()["paths"][command.path]["get"]["responses"]["200"]["content"]
        for column in command.columns.split():
            path = [*command.rows.split("."), *Column(column).path]
            assert has(whole(), answer["application/json"]["schema"], path), (command.path, column)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:1", "http://h:1"),
        ("https://h/", "https://h"),
        ("ws://h:1/ws", "http://h:1"),
        ("wss://h/base/ws", "https://h/base"),
        ("h:8080", "http://h:8080"),
    ],
)
def test_address_of_a_gateway_is_understood_in_every_form(given: str, url: str) -> None:
    assert base_url(given) == url


def test_a_key_that_signs_is_made_for_the_file_and_what_it_signs_with_is_not_shown_again() -> None:
    made = json.loads(
        fairlane("key", "create", "site", "delegating=true", "signing=true", "--print", "--json").stdout
    )
    signs = hmac.digest(made["secret"].encode(), b"fairlane sign", "sha256").hex()
    assert (made["keys"][0]["signing"], made["keys"][0]["signing_key"]) == (True, signs)
    Path("fairlane.yaml").write_text(json.dumps({"keys": made["keys"]}))
    for answer in (fairlane("config", "check"), fairlane("config", "check", "--json")):
        assert answer.exit_code == 0, answer.output
        assert "signing" in answer.output
        assert signs not in answer.output
    for lacks in ("signing", "signing_key"):
        entry = {name: value for name, value in made["keys"][0].items() if name != lacks}
        Path("fairlane.yaml").write_text(json.dumps({"keys": [entry]}))
        said = str(fairlane("config", "check").exception)
        assert "signing and signing_key belong together" in said
        assert signs not in said
    bad = {**made["keys"][0], "signing_key": f"{signs[:-1]}x"}
    Path("fairlane.yaml").write_text(json.dumps({"keys": [bad]}))
    said = str(fairlane("config", "check").exception)
    assert "keys[0].signing_key" in said
    assert signs[:60] not in said
