"""What deploy/ holds works: rules by promtool, and rules and dashboard by a real Prometheus that scrapes a real gateway."""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from tests.support.servers import free_port
from tests.support.serving import http_client, until
from tests.support.talk import Talk

from .scraping import parse

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "fairlane.json"
RULES = DEPLOY / "prometheus" / "fairlane.rules.yml"
OURS = re.compile(r"\b((?:fairlane|gen_ai|process)_[a-z0-9_]+)\b")
LABELS = {"gen_ai_request_model", "gen_ai_token_type"}
ALONE = {"fairlane_batches_stalled"}
"""Has no samples before batches have stood still for a minute."""


def panels() -> Iterator[dict[str, Any]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] != "row":
            yield panel


def queries() -> list[str]:
    """Every expression of the dashboard, with its variables filled in as Grafana does."""
    filled = {"$__rate_interval": "10s", "$queue": ".*", "$model": ".*", "$job": ".*"}
    found = []
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in filled.items():
                query = query.replace(name, value)
            found.append(query)
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def tool(*command: str) -> str:
    """What a program says; it must succeed."""
    assert shutil.which(command[0]), f"{command[0]} is missing: sh tests/install-tools"
    done = subprocess.run(
        command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_rules_are_rules() -> None:
    assert f"{len(rules())} rules found" in tool("promtool", "check", "rules", "fairlane.rules.yml")


def test_each_alert_is_raised_where_it_must_be_and_not_elsewhere() -> None:
    tool("promtool", "test", "rules", "fairlane.rules.test.yml")
    tested = yaml.safe_load((DEPLOY / "prometheus" / "fairlane.rules.test.yml").read_text())["tests"]
    raised = {
        case["alertname"] for test in tested for case in test["alert_rule_test"] if case.get("exp_alerts")
    }
    assert raised == {rule["alert"] for rule in rules()}


def test_the_dashboard_is_whole() -> None:
    shown = list(panels())
    assert len({panel["id"] for panel in shown}) == len(shown)
    taken: set[tuple[int, int]] = set()
    for panel in shown:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
        assert panel["description"]
        assert panel["targets"]


# ---- against a real gateway ----------


def launch(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    command = ["prometheus", "--config.file", "prometheus.yml", "--storage.tsdb.path", "data"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--web.listen-address", f"127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        )


@contextlib.asynccontextmanager
async def prometheus(folder: Path, target: str, secret: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A Prometheus that runs our configuration against one gateway; a client of it."""
    assert shutil.which("prometheus"), "prometheus is missing: sh tests/install-tools"
    (folder / "key").write_text(secret)
    shutil.copy(RULES, folder)
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for ours, theirs in (
        ("/etc/prometheus/fairlane.key", str(folder / "key")),
        ('"gateway-a:8080", "gateway-b:8080"', f'"{target}"'),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
    ):
        assert ours in config
        config = config.replace(ours, theirs)
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    process = launch(folder, port)
    try:
        async with http_client(f"http://127.0.0.1:{port}") as http:

            async def answers() -> bool:
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                with contextlib.suppress(httpx2.TransportError):
                    return (await http.get("/-/ready")).status_code == 200
                return False

            await until(answers, "Prometheus", 60)
            yield http
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


async def ask(http: httpx2.AsyncClient, query: str) -> list[Any]:
    answer = (await http.get("/api/v1/query", params={"query": query})).json()
    assert answer["status"] == "success", (query, answer)
    result: list[Any] = answer["data"]["result"]
    return result


async def live(talk: Talk) -> None:
    """One of everything that is counted: a task that streams, fails, is tried again, goes on, is refused, and held; and a breaker
    that opens, and is kept closed."""
    async with talk.worker2(["m"], upstream="gpu") as worker, talk.client("ops") as ops:
        for state in ("open", "closed"):
            force = {"upstream": "tests/gpu", "breaker": state}
            assert (await ops.patch("/api/admin/models/m", json=force)).status_code == 200
        chat = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        calling = talk.later(talk.http.post("/v1/chat/completions", json=chat))
        task = await worker.take()
        await worker.chunk(task, "one")
        await worker.answer(task, {"content": "one"}, usage={"prompt_tokens": 7, "completion_tokens": 21})
        assert (await calling).status_code == 200
        task_id = await talk.submit(model="m")
        for code, more in (("UPSTREAM_ERROR", {}), ("MODEL_TOO_BUSY", {"retryAfterMs": 200})):
            error = {"code": code, "message": "no", "retryable": True, **more}
            await worker.answer(await worker.take(), None, error="no", errorInfo=error)
        error = {"code": "BAD_REQUEST", "message": "no", "retryable": False}
        await worker.answer(await worker.take(), None, error="no", errorInfo=error)
        await talk.reaches(task_id, "failed")
        task_id = await talk.submit(model="far")
        await worker.answer(await worker.take(), {"content": "from m"})
        await talk.reaches(task_id, "completed")
    assert (await talk.http.post("/api/openai", json={"model": "nobody"})).status_code == 503


@pytest.mark.slow
async def test_rules_and_dashboard_ask_for_what_a_gateway_tells(gateway: Start, tmp_path: Path) -> None:
    keys = [
        {
            "id": name,
            "sha256": sha256(name.encode()).hexdigest(),
            "scopes": ["admin" if name == "ops" else "call"],
        }
        for name in ("ops", "caller")
    ]
    async with gateway(keys=keys, models={"m": {"concurrency": 2}, "far": {"fallbacks": ["m"]}}) as talk:
        talk.http.headers["Authorization"] = "Bearer caller"
        await live(talk)
        async with talk.client("ops") as ops:
            told = parse((await ops.get("/metrics")).text)
        known = set(told.samples) | {name for name, kind in told.types.items() if kind == "gauge"}
        asked = {
            name for text in [*queries(), *(rule["expr"] for rule in rules())] for name in OURS.findall(text)
        }
        assert asked - LABELS - {"fairlane_tasks_"} <= known

        target = talk.served.url.removeprefix("http://")
        async with prometheus(tmp_path, target, "ops") as http:
            await until(lambda: _two_scrapes(http), "two scrapes", 30)
            await live(talk)  # seen to grow

            async def has_grown() -> bool:
                return bool(await ask(http, "increase(fairlane_model_cooldowns_total[10s]) > 0"))

            await until(has_grown, "a scrape after that", 30)
            for query in queries():
                result = await ask(http, query)
                assert result or any(name in query for name in ALONE), query
            answer = (await http.get("/api/v1/rules")).json()["data"]["groups"][0]["rules"]
            assert {rule["name"] for rule in answer} == {rule["alert"] for rule in rules()}
            assert {rule["health"] for rule in answer} <= {"ok", "unknown"}, answer
            assert {rule["lastError"] for rule in answer if "lastError" in rule} <= {""}


async def _two_scrapes(http: httpx2.AsyncClient) -> bool:
    result = await ask(http, "count_over_time(fairlane_build_info[30s])")
    return bool(result) and float(result[0]["value"][1]) >= 2
