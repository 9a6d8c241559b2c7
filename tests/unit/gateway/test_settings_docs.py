"""What is shown of the settings."""

import pytest

from fairlane.gateway.settings import (
    CallerKey,
    KeyQuota,
    ModelSettings,
    PriceSettings,
    QueueSettings,
    RouteSettings,
    Settings,
    WorkerKey,
    external_name,
    part_of,
)
from fairlane.gateway.settings.docs import settings_table
from fairlane.gateway.settings.parts import ResponseSettings
from fairlane.gateway.settings.routing import TemplateMessage, TemplateSettings
from fairlane.gateway.settings.sources import SEED_NAMES, SINGLE


@pytest.mark.parametrize(
    "model",
    [
        *(Settings, ModelSettings, QueueSettings, RouteSettings, TemplateMessage, TemplateSettings),
        *(PriceSettings, CallerKey, KeyQuota, WorkerKey, ResponseSettings),
    ],
)
def test_every_setting_says_what_it_does(model: type[Settings]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name
        assert field.description.rstrip().endswith("."), name


def _parts_of(group: str) -> list[str]:
    part = part_of(Settings.model_fields[group])
    assert part is not None
    return list(part.model_fields)


def test_table_lists_every_setting_with_its_default() -> None:
    table = settings_table()
    groups = {"models", "queues", "routes", "templates", "chains", "prices", "keys", "workers", "upstreams"}
    for name in Settings.model_fields.keys() - groups - {"tuning", "endpoints"}:
        for inner in (f".{part}" for part in _parts_of(name)) if name in SINGLE else ("",):
            assert f"| `{external_name(name + inner)}`" in table
    for variable in SEED_NAMES:
        assert f"`{variable}`" in table
    assert "| `files.max_size` | `50GiB` |" in table
    assert "`queues.<name>.weight`" in table
    assert "| `40ms` (0 to 1s) |" in table
    assert "| `redis_url` | a private one" in table
    assert "Undefined" not in table


def test_table_has_three_cells_in_every_row() -> None:
    for line in settings_table().partition("## Disabled features")[0].splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 4, line
