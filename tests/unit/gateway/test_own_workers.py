"""Upstreams in the configuration: what is refused, which workers are started for them, and what these may do."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.serving import until

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.upstreams import OWN_WORKER, UpstreamTokens
from fairlane.gateway.configuration import ActiveConfig, changes
from fairlane.gateway.serve import workers as workers_module
from fairlane.gateway.serve.workers import MAX_CHARS, OwnWorker, OwnWorkers, loopback_url, own_plan
from fairlane.gateway.settings import Settings, SettingsError, load_settings
from fairlane.workers.adapters.providers import PROVIDERS

LOCAL = {"provider": "openai", "base_url": "http://localhost:8000/v1", "models": ["m"]}
VLLM = "{provider: vllm, models: [m], "
KEY = {"id": "app", "sha256": "1" * 64}


def load(folder: Path, text: str, **environ: str) -> Settings:
    file = folder / "f.yaml"
    file.write_text(text)
    return load_settings(file, {}, environ)[0]


def settings(upstreams: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({"upstreams": upstreams, **more})


@pytest.mark.parametrize(
    ("upstream", "environ", "said"),
    [
        ("{provider: deepsek, models: [m]}", {}, f".provider: should be one of {', '.join(PROVIDERS)}, not"),
        ("{models: [m]}", {}, ".provider: is required"),
        ("{provider: vllm}", {}, ".models: is required"),
        ("{provider: vllm, models: []}", {}, ".models: should name a model, at least"),
        ("{provider: vllm, models: {}}", {}, ".models: should name a model, at least"),
        ("{provider: vllm, models: [m, n, m]}", {}, ".models: 'm' is given twice"),
        ("{provider: vllm, models: {m: a, m: b}}", {}, "line 2: not valid YAML ('m' is given twice)"),
        ("{provider: vllm, models: [4]}", {}, ".models: should be names of models; put numbers"),
        ("{provider: vllm, models: m}", {}, ".models: should be a list of models, or `name: the upstream's name of it`"),
        (VLLM + "slots: 0}", {}, ".slots: Input should be greater than or equal to 1"),
        (VLLM + "slots: 1025}", {}, ".slots: Input should be less than or equal to 1024"),
        (VLLM + "base_url: 'localhost:80'}", {}, ".base_url: should be a URL such as http://localhost:8000/v1"),
        (VLLM + "base_url: 'http://:80/v1'}", {}, ".base_url: should be a URL such as http://localhost:8000/v1"),
        (VLLM + "base_url: 'http://a:b/v1'}", {}, ".base_url: should be a URL such as http://localhost:8000/v1"),
        (VLLM + "base_url: 'http://u:hunter2@a/v1'}", {}, ".base_url: should hold no user, password or query"),
        (VLLM + "base_url: 'http://a/v1?key=hunter2'}", {}, ".base_url: should hold no user, password or query"),
        (VLLM + "quirks: {system: last}}", {}, ".quirks: 'system=last' is not a quirk; write for example"),
        (VLLM + "api_key_env: sk-hunter2}", {}, ".api_key_env: should be the name of an environment variable"),
        (VLLM + "api_key: hunter2}", {}, ".api_key: unknown setting; did you mean api_key_env?"),
        ("{provider: deepseek, models: [m]}", {}, ": deepseek needs a key: name the variable that holds it"),
        (VLLM + "api_key_env: THE_KEY}", {}, ".api_key_env: the environment variable THE_KEY is not"),
        (VLLM + "api_key_env: THE_KEY}", {"THE_KEY": " "}, ".api_key_env: the environment variable THE_KEY is not"),
        (
            *("4", {}),
            ": Input should be settings by their names: provider, base_url, models, task_types, quirks, slots, api_key_env",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_named_at_its_place_without_a_secret(
    tmp_path: Path, upstream: str, environ: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, f"upstreams:\n  up: {upstream}\n", **environ)
    [problem] = refused.value.problems
    where = f"{tmp_path / 'f.yaml'}: "
    assert str(problem).startswith(where + ("upstreams.up" if not said.startswith("line") else "") + said)
    assert "hunter2" not in str(problem)


def test_an_upstream_may_stand_in_the_environment_too(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        "upstreams: {my-gpu: {provider: vllm, models: [a]}}",
        FAIRLANE_UPSTREAMS__MY_GPU__SLOTS="7",
        FAIRLANE_UPSTREAMS__OTHER__PROVIDER="ollama",
        FAIRLANE_UPSTREAMS__OTHER__MODELS="a, b",
    ).upstreams
    assert found["my-gpu"].slots == 7
    assert found["other"].models == {"a": "a", "b": "b"}
    assert found["other"].address == "http://localhost:11434/v1"


def test_a_worker_sees_its_own_key_and_token_and_no_other_secret() -> None:
    tokens = UpstreamTokens()
    keyed = {
        "provider": "deepseek",
        "models": {"m": "its/name", "n": "n"},
        "api_key_env": "A_KEY",
        "slots": 3,
    }
    environ = {
        "A_KEY": "a-secret",
        "B_KEY": "b-secret",
        "OPENAI_API_KEY": "another",
        "FAIRLANE_WORKER_TOKEN": "theirs",
        "PATH": "/bin",
    }
    asked = settings({"keyed": keyed, "plain": LOCAL, "other": LOCAL | {"api_key_env": "B_KEY"}})
    plan = own_plan(tokens, environ, asked)(asked, False)
    assert plan["keyed"].arguments == (
        *(
            "start",
            "--name=keyed",
            "--drain-ms=600000",
            "--provider=deepseek",
            "--upstream=keyed",
            "--slots=3",
            "--base-url=https://api.deepseek.com/v1",
        ),
        *("--model=m", "--model=n", "--upstream-model=its/name", "--upstream-model=n", "--api-key-env=A_KEY"),
    )
    assert dict(plan["keyed"].environ) == {
        "FAIRLANE_WORKER_TOKEN": tokens.token("keyed"),
        "A_KEY": "a-secret",
    }
    assert dict(plan["plain"].environ) == {"FAIRLANE_WORKER_TOKEN": tokens.token("plain")}
    assert not any("--upstream-model" in word for word in plan["plain"].arguments)
    for worker in plan.values():
        assert not any(secret in repr(worker) for _, secret in worker.environ)
    assert tokens.token("a") not in repr(tokens)
    assert UpstreamTokens().token("keyed") != tokens.token("keyed")


def test_only_what_an_upstream_says_makes_its_worker_another_one() -> None:
    tokens, before = UpstreamTokens(), settings({"a": LOCAL})
    plan = own_plan(tokens, {}, before)
    after = settings({"a": LOCAL, "b": LOCAL | {"api_key_env": "B_KEY"}}, max_task_timeout_ms=700_000, port=1)
    assert plan(after, False)["a"] == plan(before, False)["a"]
    assert plan(settings({"a": LOCAL | {"slots": 2}}), False)["a"] != plan(before, False)["a"]


@pytest.mark.parametrize("keys", [[], [KEY]])
def test_a_token_is_good_for_the_models_of_its_upstream_as_long_as_it_is_configured(keys: list[Any]) -> None:
    tokens = UpstreamTokens()
    up = settings({"a": LOCAL | {"models": ["x", "y"]}, "b": LOCAL}, keys=keys)
    callers = Callers(up, own=tokens)
    identity = callers.authenticate_worker(f"Bearer {tokens.token('a')}")
    assert identity is not None
    assert (identity.id, identity.models) == (OWN_WORKER, ("x", "y"))
    if keys:
        gone = Callers(settings({"b": LOCAL}, keys=keys), own=tokens)
        assert gone.authenticate_worker(f"Bearer {tokens.token('a')}") is None
        assert Callers(up, own=UpstreamTokens()).authenticate_worker(f"Bearer {tokens.token('a')}") is None
        assert Callers(up).authenticate_worker(f"Bearer {tokens.token('a')}") is None
        assert callers.authenticate_worker(None) is None
    assert (
        callers.hash == Callers(settings({}, keys=keys)).hash
    )  # replicas with the same keys are told to have the same


def test_a_worker_of_our_own_is_let_in_where_the_gateway_listens() -> None:
    tokens = UpstreamTokens()
    up = settings({"a": LOCAL}, host="10.0.0.5", allowed_hosts=["gw.example"], keys=[KEY])
    callers = Callers(up, own=tokens)

    def refused(host: bytes) -> str | None:
        return callers.reject_worker({"headers": [(b"host", host)]})

    assert refused(b"10.0.0.5:8080") is None
    assert refused(b"gw.example") is None
    assert refused(b"evil.example") is not None


def test_upstreams_are_taken_over_while_it_runs_and_their_models_are_known() -> None:
    tokens, before = UpstreamTokens(), settings({"a": LOCAL, "b": LOCAL}, keys=[KEY])
    after = settings({"a": LOCAL | {"slots": 2}, "c": LOCAL | {"models": ["z"]}}, keys=[KEY])
    assert changes(before, after) == {
        "upstreams_removed": ["b"],
        "upstreams_added": ["c"],
        "upstreams_changed": ["a"],
    }
    current = ActiveConfig(before, tokens)
    current.replace(after)
    assert current.settings.listed_models == {"m", "z"}
    assert current.settings.lists("z")
    assert not current.settings.lists("b")
    assert current.callers.authenticate_worker(f"Bearer {tokens.token('c')}") is not None
    assert current.callers.authenticate_worker(f"Bearer {tokens.token('b')}") is None


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")]
)  # fmt: skip
def test_workers_dial_by_loopback(host: str, shown: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        assert loopback_url(listener) == f"http://{shown}:{listener.getsockname()[1]}"


def test_what_may_quote_a_request_is_left_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies with a traceback, once before it has connected and then behind that."""
    spoken = "import sys; sys.stderr.write({0!r}); sys.exit(1)"
    trace = (
        'Traceback (most recent call last):\n  File "/x/y.py", line 3, in run\nValueError: my secret prompt\n'
    )
    registered = "2026-11-24 00:00:00,000 INFO fairlane.worker: registered with ws://x/ws as 1\n"

    async def said(text: str) -> list[str]:
        monkeypatch.setattr(workers_module, "COMMAND", (sys.executable, "-c", spoken.format(text)))
        with capture_logs() as logs:
            async with OwnWorkers(lambda *_: {"a": OwnWorker(())}, "http://127.0.0.1:1", {}, 600) as own:
                own.follow(Settings())
                await until(lambda: any("said" in line for line in logs), "its death")
        return list(next(line["said"] for line in logs if "said" in line))

    place = '  File "/x/y.py", line 3, in run'
    begins = "Traceback (most recent call last):"
    assert asyncio.run(said(trace)) == [begins, place, "ValueError: my secret prompt"]
    assert asyncio.run(said(registered + trace)) == [
        "registered with ws://x/ws as 1",
        "Traceback",
        place,
        "ValueError",
    ]


def test_long_lines_of_a_worker_are_cut_and_control_characters_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = "import sys; print('t\\x1b[31mwo'); print('x' * 1000); print('y' * 300_000); print('last'); sys.exit(1)"
    monkeypatch.setattr(workers_module, "COMMAND", (sys.executable, "-c", script))

    async def said() -> list[str]:
        with capture_logs() as logs:
            async with OwnWorkers(lambda *_: {"a": OwnWorker(())}, "http://127.0.0.1:1", {}, 600) as own:
                own.follow(Settings())
                await until(lambda: any("said" in line for line in logs), "its death")
        return list(next(line["said"] for line in logs if "said" in line))

    first, second, *_, last = asyncio.run(said())
    assert (first, second, last) == ("t[31mwo", "x" * MAX_CHARS, "last")


def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ignores SIGTERM, in place of the command."""
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = f"{ignore}; print('registered with x', flush=True); time.sleep(600)"
    monkeypatch.setattr(workers_module, "COMMAND", (sys.executable, "-c", script))
    monkeypatch.setattr(workers_module, "GRACE_S", 0.1)

    async def run() -> None:
        plan = {"stuck": OwnWorker(())}
        async with OwnWorkers(lambda *_: plan, "http://127.0.0.1:1", {}, 600) as own:
            own.follow(Settings())
            keeper = own._keepers["stuck"]
            async with asyncio.timeout(30):
                await keeper.connected.wait()
        assert keeper.over
        assert not own._tasks

    asyncio.run(run())
