"""Overrides that replicas apply: what they make of the settings, and which tasks a share concerns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.overrides.overlay import (
    MODEL_SETTINGS,
    ROUTE_SETTINGS,
    InvalidOverride,
    Overlay,
    in_percent,
    overlay,
    overridden,
)
from fairlane.gateway.routing.plans import Plan, Plans
from fairlane.gateway.settings import ModelSettings, RouteRule, Settings, external_name
from fairlane.queues.overrides import Override

SETTINGS: dict[str, Any] = {
    "models": {"a": {}, "b": {}, "f": {"fallbacks": ["a"], "first_output_ms": 9000}},
    "routes": {
        "r": {"model": "a", "tiers": {"paid": {"model": "b", "max_output_tokens": 7}}},
        "to_f": {"model": "f"},
        "seeing": {"model": "a", "vision": {"model": "b"}},
    },
}
TASKS = [f"task-{number}" for number in range(1000)]


def settings() -> Settings:
    return Settings.model_validate(SETTINGS)


def laid(*overrides: Override) -> Overlay:
    said = settings()
    return overlay(said, Plans(said), overrides)


def plan(
    over: Overlay, name: str, subject: str = "", tier: str = "free", *, user: str = "u", image: bool = False
) -> Plan:
    caller = Caller(user, tier, "k")
    return over.plans_of(name, subject).plan(caller, name, 0.0, lambda: image)


def route(name: str = "r", percent: int = 100, override_id: str = "o1", **values: Any) -> Override:
    return Override("route", name, values, percent=percent, id=override_id)


def test_the_names_are_those_of_the_configuration() -> None:
    assert set(ROUTE_SETTINGS) == set(map(external_name, RouteRule.model_fields)) - {"price", "same_task"}
    assert set(MODEL_SETTINGS) <= set(map(external_name, ModelSettings.model_fields))


@given(st.text(), st.text(), st.integers(1, 100), st.integers(1, 100))
def test_a_subject_of_a_smaller_share_stays_in_a_larger_one(
    override_id: str, subject: str, one: int, other: int
) -> None:
    few, more = sorted((one, other))
    assert in_percent(override_id, subject, few) <= in_percent(override_id, subject, more)
    assert in_percent(override_id, subject, 100)


@pytest.mark.parametrize("percent", [1, 10, 50, 99])
def test_a_share_has_about_its_percentage_and_each_override_another_one(percent: int) -> None:
    first, second = ({task for task in TASKS if in_percent(name, task, percent)} for name in ("o1", "o2"))
    assert abs(len(first) / len(TASKS) - percent / 100) < 0.05
    assert first != second


def test_a_task_in_the_share_has_the_candidate_and_the_others_the_baseline() -> None:
    over = laid(
        route(percent=30, model="f"),
        route(timeout="5ms", override_id="o2"),
        route("to_f", 100, "o3", mode="batch"),
    )
    for task in TASKS[:100]:
        found = plan(over, "r", task)
        assert found.model == ("f" if in_percent("o1", task, 30) else "a")
        assert found.rule is not None
        assert found.rule.timeout_ms == 5
    assert plan(over, "r").model == "a", "without a task there is no share"
    rule = plan(over, "to_f", "t").rule
    assert rule is not None
    assert rule.mode == "batch"
    assert over.plans_of("a", "t") is over.plans


def test_values_of_tiers_and_of_requests_with_images_are_set_by_their_names() -> None:
    over = laid(
        route(**{"model": "f", "tiers.paid.fallbacks": ["a"]}),
        route("seeing", 100, "o2", **{"vision.max_output_tokens": 9, "vision.tiers.free.model": "f"}),
        route("to_f", 100, "o3", **{"vision.model": "b", "fallbacks": None}),
    )
    assert (plan(over, "r").model, plan(over, "r", tier="paid").model) == ("f", "b")
    paid = plan(over, "r", tier="paid").rule
    assert paid is not None
    assert (paid.fallbacks, paid.max_output_tokens) == (("a",), 7)
    image = plan(over, "seeing", image=True)
    assert image.rule is not None
    assert (image.model, image.rule.max_output_tokens, plan(over, "seeing").model) == ("f", 9, "a")
    assert plan(over, "seeing", tier="paid", image=True).model == "b"
    assert (plan(over, "to_f", image=True).model, plan(over, "to_f").fallbacks) == ("b", (("a", ""),))


def test_an_override_of_a_model_holds_for_its_routes_too_and_the_last_one_wins() -> None:
    over = laid(
        Override("model", "a", {"fallbacks": ["b"], "first_output": "5ms", "concurrency": 2}, id="o1"),
        Override("model", "a", {"first_output": "6ms"}, id="o2"),
        Override("model", "f", {"fallbacks": None}, id="o3"),
        Override("queue", "free_batch", {"weight": 2.0}, id="o4"),
    )
    assert over.settings.models["a"].first_output_ms == 6
    assert over.settings.models["a"].concurrency is None, "the scheduler applies it"
    assert (plan(over, "a").fallbacks, plan(over, "r").fallbacks) == ((("b", ""),), (("b", ""),))
    assert plan(over, "f").fallbacks == ()


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (route("nowhere", model="a"), "there is no route 'nowhere'; there are: r, seeing, to_f"),
        (route(modl="a"), "'modl' of a route cannot be overridden; did you mean model?"),
        (route(price={"input": 1}), "'price' of a route cannot be overridden"),
        (route(model=7), "model should be a valid string; got 7"),
        (route(**{"tiers.gold.model": "a"}), "no queue has the tier 'gold'"),
        (route(model=None), "model"),
        (route(template="t"), "t"),
        (Override("model", "a", {"first_output": 5}), "first_output should be a duration"),
    ],
)
def test_values_that_the_configuration_would_not_accept_are_rejected(
    override: Override, problem: str
) -> None:
    with pytest.raises(InvalidOverride, match=problem.replace("(", r"\(")):
        overridden(settings(), override)
    assert override.id in laid(override).invalid


def test_an_override_that_does_not_fit_any_more_is_not_applied_and_the_others_are() -> None:
    over = laid(route("gone", model="a"), route(model="f", override_id="o2"))
    assert list(over.invalid) == ["o1"]
    assert plan(over, "r").model == "f"
