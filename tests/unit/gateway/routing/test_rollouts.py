"""Changes of what is decided for each task: who is on which side, what they make of the settings, and whom they concern."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.routing.plans import Plan, Plans
from fairlane.gateway.routing.rollouts import MODEL_FIELDS, ROUTE_FIELDS, Rollouts, Unfit, changed, in_share
from fairlane.gateway.routing.rollouts import rollouts as made_of
from fairlane.gateway.settings import ModelSettings, RouteRule, Settings
from fairlane.queues.changes import MOST_LIVE, Phase, PlannedChange

SETTINGS: dict[str, Any] = {
    "models": {
        "a": {},
        "b": {},
        "f": {"fallbacks": ["a"], "first_output_ms": 9000, "first_output_least_ms": 20},
    },
    "routes": {
        "r": {"model": "a", "tiers": {"paid": {"model": "b", "max_run_ms": 7}}},
        "to_f": {"model": "f"},
        "seeing": {"model": "a", "vision": {"model": "b"}},
    },
    "templates": {"t": {"messages": [{"role": "user", "content": "hi"}], "parameters": {"max_tokens": 50}}},
}


def settings(**more: Any) -> Settings:
    return Settings.model_validate({**SETTINGS, **more})


def change(kind: Any, name: str, rollout: int = 50, **more: Any) -> PlannedChange:
    fields = more.pop("fields")
    return PlannedChange(kind, name, fields, rollout=rollout, **{"id": "c1", "phase": Phase.ACTIVE, **more})


def rolled(*changes: PlannedChange, **more: Any) -> Rollouts:
    said = settings(**more)
    made, unfit = made_of(said, Plans(said), changes)
    assert made is not None
    assert unfit == {}
    return made


def plan(
    made: Rollouts, name: str, subject: str = "", tier: str = "free", *, user: str = "u", image: bool = False
) -> Plan:
    return made.plan(Caller(user, tier, "k"), name, subject, 0.0, lambda: image)


def sides(made: Rollouts, name: str, subjects: Sequence[str], **more: Any) -> dict[str, Plan]:
    return {subject: plan(made, name, subject, **more) for subject in subjects}


def test_what_can_be_changed_is_what_the_configuration_calls_so() -> None:
    assert set(ROUTE_FIELDS) == set(RouteRule.model_fields) - {"price", "same_task_ms"}
    assert set(MODEL_FIELDS) <= set(ModelSettings.model_fields)


# ---- who is on which side ----------

TASKS = [f"task-{number}" for number in range(4000)]


@pytest.mark.parametrize("percent", [1, 10, 50, 90, 99])
def test_a_share_is_about_as_large_as_it_says(percent: int) -> None:
    share = sum(in_share("c", task, percent) for task in TASKS) / len(TASKS)
    assert abs(share - percent / 100) < 0.03


@given(st.text(), st.text(), st.integers(1, 100), st.integers(1, 100))
def test_who_is_among_few_is_among_more_and_always_the_same(
    change_id: str, subject: str, one: int, other: int
) -> None:
    few, more = sorted((one, other))
    assert in_share(change_id, subject, few) <= in_share(change_id, subject, more)
    assert in_share(change_id, subject, few) == in_share(change_id, subject, few)
    assert in_share(change_id, subject, 100)


def test_another_change_chooses_others() -> None:
    first, second = ({task for task in TASKS if in_share(name, task, 50)} for name in ("c1", "c2"))
    assert 0.4 < len(first & second) / len(first) < 0.6


@given(st.integers(1, 100), st.lists(st.uuids().map(str), max_size=50, unique=True))
def test_old_and_new_together_are_all_tasks(percent: int, subjects: list[str]) -> None:
    made = rolled(change("route", "r", percent, fields={"model": "f"}))
    for subject, one in sides(made, "r", subjects).items():
        new = in_share("c1", subject, percent)
        assert (one.model, one.change) == (("f", "c1 new") if new else ("a", "c1 old"))


def test_a_share_of_users_shows_each_one_behaviour() -> None:
    made = rolled(change("route", "r", fields={"model": "f"}, by_user=True))
    models = {
        user: {plan(made, "r", task, user=user).model for task in TASKS[:20]} for user in map(str, range(40))
    }
    assert all(len(seen) == 1 for seen in models.values())
    assert {model for seen in models.values() for model in seen} == {"a", "f"}


def test_where_the_same_is_the_same_task_a_user_stays_on_one_side() -> None:
    routes = {"r": {"model": "a", "same_task_ms": 1000}}
    made = rolled(change("route", "r", fields={"model": "f"}), routes=routes)
    assert len({plan(made, "r", task).model for task in TASKS[:50]}) == 1


def test_what_is_no_task_is_on_the_old_side_until_all_are_on_the_new() -> None:
    assert plan(rolled(change("route", "r", 99, fields={"model": "f"})), "r").model == "a"
    assert plan(rolled(change("route", "r", 100, fields={"model": "f"})), "r").model == "f"


# ---- what it makes of the settings ----------


def rule(made: Rollouts, name: str = "r", tier: str = "free", *, image: bool = False) -> Any:
    return plan(made, name, tier=tier, image=image).rule


def test_a_change_of_all_tiers_beats_what_is_said_of_one() -> None:
    made = rolled(change("route", "r", 100, fields={"model": "f", "timeout_ms": 5000}))
    assert (rule(made).model, rule(made).timeout_ms) == ("f", 5000)
    paid = rule(made, tier="paid")
    assert (paid.model, paid.timeout_ms, paid.max_run_ms) == ("f", 5000, 7)


def test_a_change_of_a_tier_is_none_of_the_others() -> None:
    made = rolled(change("route", "r", 100, fields={"model": "f"}, tier="paid"))
    assert (rule(made).model, rule(made, tier="paid").model) == ("a", "f")
    assert (plan(made, "r", "x").change, plan(made, "r", "x", "paid").change) == ("", "c1 new")


def test_null_is_as_if_it_were_not_said() -> None:
    made = rolled(change("route", "r", 100, fields={"max_run_ms": None, "fallbacks": ["a"]}))
    assert (rule(made, tier="paid").max_run_ms, rule(made).fallbacks) == (0, ("a",))
    made = rolled(change("model", "f", 100, fields={"fallbacks": None, "silence_ms": None}))
    assert plan(made, "f").fallbacks == ""
    assert made.settings.models["f"].silence_ms is None


def test_a_change_of_requests_with_images_leaves_the_others() -> None:
    made = rolled(change("route", "seeing", 100, fields={"model": "f"}, vision=True))
    assert rule(made, "seeing").model == "a"
    assert rule(made, "seeing", image=True).model == "f"
    assert plan(made, "seeing", "x").change == ""


def test_requests_with_images_are_told_apart_on_both_sides_where_the_route_does_not() -> None:
    made = rolled(change("route", "r", 50, fields={"model": "f"}, vision=True))
    with_image = sides(made, "r", TASKS[:40], image=True).values()
    assert {(one.model, one.change) for one in with_image} == {("a", "c1 old"), ("f", "c1 new")}
    without = sides(made, "r", TASKS[:40]).values()
    assert {(one.model, one.change) for one in without} == {("a", "")}


WRONG: list[tuple[PlannedChange, str]] = [
    (change("route", "r", fields={"model": 3}), "model should be a valid string; got 3"),
    (change("route", "r", fields={"timeout_ms": "5"}), "timeout_ms should be a valid integer"),
    (change("route", "r", fields={"model": None}), "routes.r: it names no model for the tier"),
    (change("route", "r", fields={"template": "x"}), "there is no template 'x'; there are t"),
    (
        change("route", "r", fields={"template": "t", "max_output_tokens": 10}),
        "its template asks for 50 tokens",
    ),
    (change("route", "r", fields={"model": "a"}, tier="gold"), "no queue has the tier 'gold'"),
    (change("route", "nowhere", fields={"model": "a"}), "there is no route 'nowhere'"),
    (change("model", "a", fields={"fallbacks": ["a"]}), "falls back to itself"),
    (
        change("model", "f", fields={"first_output_ms": 10}),
        "first_output_least_ms .20. is above first_output_ms",
    ),
    (change("model", "a", fields={"silence_ms": 0}), "silence_ms should be greater than"),
]


@pytest.mark.parametrize(("wanted", "why"), WRONG)
def test_what_the_configuration_would_not_take_is_no_change(wanted: PlannedChange, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        changed(settings(), wanted)


def test_a_change_that_does_not_fit_any_more_holds_for_nobody_and_hinders_no_other() -> None:
    said = settings()
    changes = [
        change("route", "gone", fields={"model": "a"}, id="lost"),
        change("route", "r", 100, fields={"model": "f"}),
    ]
    made, unfit = made_of(said, Plans(said), changes)
    assert made is not None
    assert (plan(made, "r").model, list(unfit)) == ("f", ["lost"])


def test_what_waits_has_ended_or_holds_for_a_whole_concerns_no_task() -> None:
    said = settings()
    others = [
        change("route", "r", fields={"model": "f"}, phase=phase)
        for phase in (Phase.SCHEDULED, Phase.ENDED, Phase.TAKEN_BACK)
    ]
    whole = change("model", "a", 100, fields={"concurrency": 3}, whole=True)
    assert made_of(said, Plans(said), [*others, whole]) == (None, {})


# ---- models, and which change a task takes part in ----------


def test_a_models_change_concerns_who_names_it_and_the_routes_that_come_to_it() -> None:
    made = rolled(change("model", "f", fields={"fallbacks": ["b"]}))
    for name in ("f", "to_f"):
        told = {(one.fallbacks.split("\t")[0], one.change) for one in sides(made, name, TASKS[:40]).values()}
        assert told == {("a", "c1 old"), ("b", "c1 new")}
    assert plan(made, "r", "x").change == ""


def test_a_model_without_fallbacks_is_given_some() -> None:
    made = rolled(change("model", "a", fields={"fallbacks": ["b"]}))
    told = {(one.rule is None, one.change) for one in sides(made, "a", TASKS[:40]).values()}
    assert told == {(True, "c1 old"), (False, "c1 new")}
    paid = {one.change for one in sides(made, "r", TASKS[:40], tier="paid").values()}
    assert paid == {""}  # which comes to b


def test_a_task_takes_part_in_its_routes_change_and_no_other() -> None:
    of_model = change("model", "f", fields={"fallbacks": ["b"]}, id="c2")
    made = rolled(change("route", "to_f", fields={"max_run_ms": 5}), of_model)
    assert {one.change.split()[0] for one in sides(made, "to_f", TASKS[:40]).values()} == {"c1"}
    assert {one.fallbacks.split("\t")[0] for one in sides(made, "to_f", TASKS[:40]).values()} == {"a"}


def test_what_holds_for_all_tasks_of_a_model_holds_beside_a_routes_own_change() -> None:
    of_model = change("model", "f", 100, fields={"fallbacks": ["b"], "silence_ms": 5}, id="c2")
    made = rolled(change("route", "to_f", fields={"max_run_ms": 5}), of_model)
    assert {one.fallbacks.split("\t")[0] for one in sides(made, "to_f", TASKS[:40]).values()} == {"b"}
    assert made.settings.models["f"].silence_ms == 5
    assert plan(made, "f", "x").change == "c2 new"


def test_limits_of_a_share_are_told_to_workers_by_side() -> None:
    made = rolled(change("model", "a", fields={"first_output_ms": 5000}))
    assert {one.change for one in sides(made, "a", TASKS[:40]).values()} == {"c1 old", "c1 new"}
    assert made.limited["a", "c1 new"].first_output_ms == 5000
    assert made.settings.models["a"].first_output_ms is None


def test_as_many_changes_as_may_be_of_thousands_of_routes_are_made_at_once() -> None:
    many = {f"r{n}": {"model": f"m{n % MOST_LIVE}"} for n in range(3000)}
    said = settings(routes=many, models={f"m{n}": {} for n in range(MOST_LIVE)})
    plans = Plans(said)
    changes = [
        change("model", f"m{n}", id=f"c{n}", fields={"first_output_ms": 9000})
        if n % 2
        else change("route", f"r{n}", id=f"c{n}", fields={"timeout_ms": 9000})
        for n in range(MOST_LIVE)
    ]
    began = time.thread_time()
    made, unfit = made_of(said, plans, changes)
    assert time.thread_time() - began < 2, "no change looks at all that the configuration says"
    assert made is not None
    assert unfit == {}
    assert plan(made, "r1", TASKS[0]).change.startswith("c1 ")
