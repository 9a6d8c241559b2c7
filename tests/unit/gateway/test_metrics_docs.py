"""The page on metrics names every metric with its labels, and no other; the alerts too."""

import re
from pathlib import Path

import yaml

from fairlane.gateway.batches.feature import GAUGES as BATCHES
from fairlane.gateway.files.feature import GAUGES as FILES
from fairlane.gateway.metrics.exposition import PROVIDER
from fairlane.gateway.metrics.gauges import PROCESS_GAUGES, STORE_GAUGES
from fairlane.gateway.responses.quota import GAUGES as RESPONSES
from fairlane.queues.metrics import METRICS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text()


def listed(part: str) -> dict[str, tuple[str, ...]]:
    """Metrics of a table and their labels."""
    table = PAGE.partition(f"<!-- {part}:begin -->")[2].partition(f"<!-- {part}:end -->")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {re.findall(r"`(\w+)`", row[0])[0]: tuple(re.findall(r"`(\w+)`", row[1])) for row in rows}


def test_what_a_process_counts_is_listed() -> None:
    page = {name: labels for name, labels in listed("process").items() if not name.startswith("process_")}
    provider = (PROVIDER[0],)
    series = {s.name: (provider if s.name.startswith("gen_ai") else ()) + s.labels for s in METRICS}
    assert page == {**series, **{gauge.name: gauge.labels for gauge in PROCESS_GAUGES}}


def test_what_the_store_says_is_listed() -> None:
    assert listed("store") == {
        **{metric.name: metric.labels for metric in STORE_GAUGES},
        "fairlane_survey_success": (),
        "fairlane_build_info": ("version",),
    }


def test_what_the_database_says_is_listed() -> None:
    gauges = {metric.name: metric.labels for metric in (*BATCHES, *FILES, *RESPONSES)}
    assert listed("database") == {**gauges, "fairlane_database_survey_success": ()}


def test_the_alerts_are_listed() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "fairlane.rules.yml").read_text())["groups"][0][
        "rules"
    ]
    assert re.findall(r"^\| (Fairlane\w+) \|", PAGE, re.MULTILINE) == list(
        dict.fromkeys(rule["alert"] for rule in rules)  # one that is critical or a warning has two rules
    )
