"""Settings of disabled features."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.features import with_dependents

from fairlane.gateway import features
from fairlane.gateway.features import FEATURES, places_set
from fairlane.gateway.settings import Settings, SettingsError, load_settings

KEY = {"id": "k", "sha256": "0" * 64}
USES: dict[str, dict[str, Any]] = {
    "idempotency": {"routes": {"r": {"model": "m", "same_task": "1m"}}},
    "breakers": {"models": {"m": {"breaker_failures": 3}}},
    "adaptive": {"models": {"m": {"concurrency": {"auto": True, "target_first_token": "2s", "max": 8}}}},
    "pacing": {"models": {"m": {"windows": "5/1s"}}},
    "limits": {"keys": [KEY | {"limits": {"max_running": 1}}]},
    "credits": {"prices": [{"model": "m", "input": 1, "output": 1}]},
    "signed_tokens": {"keys": [KEY | {"delegating": True, "signing": True, "signing_key": "1" * 64}]},
    "fallbacks": {"routes": {"r": {"model": "m", "tiers": {"free": {"fallbacks": ["n"]}}}}},
    "archive": {"archive": "results"},
    "endpoints": {"endpoints": {"e": {"url": "https://example.com/x"}}},
}


def load(tmp_path: Path, tree: dict[str, Any], **environ: str) -> Settings:
    file = tmp_path / "fairlane.yaml"
    file.write_text(json.dumps(tree))
    return load_settings(file, {}, environ)[0]


@pytest.mark.parametrize("name", USES)
def test_a_setting_that_needs_a_disabled_feature_is_an_error_at_its_place(tmp_path: Path, name: str) -> None:
    load(tmp_path, USES[name])
    disabled = sorted(with_dependents([name]))
    with pytest.raises(SettingsError, match=f"feature {name}, which disabled_features") as error:
        load(tmp_path, USES[name] | {"disabled_features": disabled})
    (setting,) = USES[name]
    assert f"fairlane.yaml: {setting}" in str(error.value)


def test_an_unknown_name_is_an_error_with_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"idempotency, overrides, .*webhooks") as error:
        load(tmp_path, {}, FAIRLANE_DISABLED_FEATURES="webhooks,chians")
    assert "FAIRLANE_DISABLED_FEATURES" in str(error.value)
    assert load(tmp_path, {}, FAIRLANE_DISABLED_FEATURES="webhooks, chains").has("webhooks") is False


@pytest.mark.parametrize("feature", [one for one in FEATURES if one.requires], ids=lambda one: one.name)
def test_a_feature_that_another_one_requires_is_disabled_together_with_it(
    tmp_path: Path, feature: Any
) -> None:
    for required in feature.requires:
        with pytest.raises(SettingsError, match=f"{feature.name} requires {required}"):
            load(tmp_path, {"disabled_features": sorted(with_dependents([required]) - {feature.name})})
        assert load(tmp_path, {"disabled_features": sorted(with_dependents([required]))})


def test_every_setting_of_a_feature_exists() -> None:
    route = {"model": "m", "tiers": {"free": {}}, "vision": {"tiers": {"free": {}}}}
    endpoint = {"url": "https://example.com/x"}
    tree = {"models": {"m": {}}, "routes": {"r": route}, "keys": [KEY], "endpoints": {"e": endpoint}}
    settings = Settings.model_validate(tree)
    for feature in FEATURES:
        for pattern in feature.settings:  # one that does not exist raises
            assert list(places_set(settings, pattern.split("."))) in ([], [("endpoints",)]), pattern


def test_no_folder_of_the_gateway_has_more_than_a_dozen_modules() -> None:
    gateway = Path(features.__file__).parent
    for folder in [gateway, *(path for path in gateway.rglob("*") if path.is_dir())]:
        assert len([*folder.glob("*.py")]) <= 13, folder  # with __init__.py
