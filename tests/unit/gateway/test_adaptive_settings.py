"""The adapted concurrency limit in the configuration, for the scheduler, and for operators."""

from pathlib import Path
from typing import Any

import pytest

from fairlane.gateway.admin.changes import configured, read_change
from fairlane.gateway.admin.rows import model_row
from fairlane.gateway.errors import ApiError
from fairlane.gateway.settings import Settings, SettingsError, load_settings
from fairlane.gateway.settings.flatten import flatten
from fairlane.queues.inspect.inspector import model_of
from fairlane.queues.rules import EffectiveSettings

AUTO = "{auto: true, target_first_token: 2s, max: 64}"


def load(folder: Path, concurrency: str) -> Settings:
    file = folder / "fairlane.yaml"
    file.write_text(f"models:\n  m:\n    concurrency: {concurrency}\n")
    return load_settings(file, {}, {})[0]


def test_the_scheduler_gets_a_number_or_the_bounds(tmp_path: Path) -> None:
    found = configured(load(tmp_path, AUTO))[1]["m"]
    assert found | {"auto_target_ms": 2000, "auto_min": 1, "auto_max": 64} == found
    assert "concurrency" not in found
    assert configured(load(tmp_path, "8"))[1]["m"]["concurrency"] == 8


@pytest.mark.parametrize(
    ("concurrency", "place", "problem"),
    [
        ("{auto: true, target_first_token: 2, max: 8}", "concurrency.target_first_token", "duration such as"),
        ("{auto: true, target_first_token: 2s, max: 0}", "concurrency.max", "greater than or equal to 1"),
        ("{auto: true, target_first_token: 2s}", "concurrency.max", "is required"),
        ("{auto: false, target_first_token: 2s, max: 2}", "concurrency.auto", "True"),
        ("{auto: true, target_first_token: 2s, max: 2, min: 3}", "concurrency", "min should not exceed max"),
        ("{auto: true, target_first_token: 2s, max: 2, most: 3}", "concurrency.most", "unknown setting"),
        ("0", "concurrency", "greater than or equal to 1"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, concurrency: str, place: str, problem: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, concurrency)
    assert f"models.m.{place}" in str(caught.value)
    assert problem in str(caught.value)


def test_it_is_one_setting_with_its_value(tmp_path: Path) -> None:
    shown = {leaf.name: leaf.value for leaf in flatten(load(tmp_path, AUTO))}
    assert shown["models.m.concurrency"] == {
        "auto": True, "target_first_token": "2s", "max": 64, "min": 1,
    }  # fmt: skip


def test_an_operator_sets_a_number_and_other_settings_next_to_it(tmp_path: Path) -> None:
    settings = load(tmp_path, AUTO)
    assert read_change(settings, "model", "m", {"concurrency": 8}) == {"concurrency": 8}
    assert read_change(settings, "model", "m", {"requests_per_minute": 8}) == {"requests_per_minute": 8}
    with pytest.raises(ApiError, match="in the configuration only"):
        read_change(settings, "model", "m", {"concurrency": {"auto": True}})


def test_an_operator_sees_the_limit_and_its_bounds() -> None:
    adapted = {"limit": 12, "min": 1, "max": 64, "target_ms": 2000, "decreases": 3}
    seen: dict[str, Any] = {"known": True, "running": 3, "lanes": {}, "adaptive": adapted}
    row = model_row(model_of("m", EffectiveSettings({}, {}), seen, 0)[0])
    assert row["limit"] == 12
    assert row["adaptive"] == {"limit": 12, "min": 1, "max": 64, "targetMs": 2000, "decreases": 3}
