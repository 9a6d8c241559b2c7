"""The environment variables that the requirements document names, as the settings read them."""

import pytest

from fairlane.gateway.settings import load_settings


def test_r7_1_task_timeout_ms_is_read_from_the_environment_and_is_60000_by_default() -> None:
    assert load_settings(None, {}, {})[0].task_timeout_ms == 60_000
    assert load_settings(None, {}, {"TASK_TIMEOUT_MS": "45000"})[0].task_timeout_ms == 45_000


def test_r7_2_max_queue_length_is_read_from_the_environment_and_is_1000_by_default() -> None:
    assert load_settings(None, {}, {})[0].max_queue_length == 1000
    assert load_settings(None, {}, {"MAX_QUEUE_LENGTH": "7"})[0].max_queue_length == 7


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "1e999", "60s", "NaN"])
def test_r7_3_an_invalid_value_falls_back_to_the_default_with_a_warning(text: str) -> None:
    environ = {"TASK_TIMEOUT_MS": text, "MAX_QUEUE_LENGTH": text}
    settings, warnings = load_settings(None, {}, environ)
    assert (settings.task_timeout_ms, settings.max_queue_length) == (60_000, 1000)
    if text:  # an empty variable is one that is not set
        assert [name for name in environ for warning in warnings if name in warning] == list(environ)
