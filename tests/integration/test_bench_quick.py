"""The benchmark runs and measures what it says. Its figures are not tested: they differ by machine and hour."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_S = 110

CORES = {"gateway_core", "redis_core", "workers_core", "load_core", "others"}
TASKS = {"tasks_per_s", "gateway_cpu_ms_per_task", "redis_cpu_ms_per_task"}
COMPARED = {"cpu_per_token_to_yardstick", "first_token_p50_to_yardstick", "first_token_p99_to_yardstick"}
STREAMS = {
    "redis_writes_per_token",
    "redis_scripts_per_token",
    "tokens_per_s",
    "gateway_cpu_ms_per_1k_tokens",
    "redis_cpu_ms_per_1k_tokens",
    "tokens_per_event",
    "first_token_added_p50_ms",
    "first_token_added_p99_ms",
    "token_delay_p50_ms",
    "token_delay_p99_ms",
}
EXPECTED = {
    "sync": CORES
    | TASKS
    | {"latency_p50_ms", "latency_p99_ms", "latency_p99_to_p50", "cpu_per_task_to_yardstick"},
    "latency": CORES | {"added_p50_ms", "added_p99_ms", "sent_late_p99_ms"},
    "streams_200": CORES | STREAMS | COMPARED,
    "tokens_200k_batched": CORES | STREAMS,
    "async": CORES | TASKS | {"tasks_per_gateway_core_s"},
    "idle_chat": CORES | {"kib_per_stream", "gateway_rss_mib"},
}
WITH_TARGET = {
    ("sync", "cpu_per_task_to_yardstick"),
    ("sync", "latency_p99_to_p50"),
    ("streams_200", "cpu_per_token_to_yardstick"),
    ("streams_200", "first_token_p50_to_yardstick"),
    ("streams_200", "first_token_p99_to_yardstick"),
    ("streams_200", "redis_writes_per_token"),
    ("idle_chat", "kib_per_stream"),
}
"""The figures that the project has set itself a target for."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_quick_benchmark_completes_without_errors_and_fills_every_field(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--seconds", "0.4", "--json", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(output.read_bytes())
    assert report["quick"] is True
    assert report["version"]
    assert report["machine"]["cores"] >= 1
    outcomes = {outcome["scenario"]: outcome for outcome in report["outcomes"]}
    assert outcomes.keys() == EXPECTED.keys()
    for scenario, outcome in outcomes.items():
        assert outcome["errors"] == 0, (scenario, outcome["error"])
        figures = {figure["name"]: figure for figure in outcome["figures"]}
        assert figures.keys() == EXPECTED[scenario]
        for name, figure in figures.items():
            assert math.isfinite(figure["value"]), (scenario, name)
            assert figure["low"] <= figure["value"] <= figure["high"]
            assert figure["rounds"] == 1
            has_target = (scenario, name) in WITH_TARGET
            assert (figure["reach"] is not None, figure["reached"] is not None) == (has_target, has_target)
        for name in ("tasks_per_s", "tokens_per_s", "first_token_added_p99_ms", "token_delay_p50_ms"):
            if name in figures:
                assert figures[name]["value"] > 0, (scenario, name)
    assert "MISSED" in done.stdout or "reached" in done.stdout
