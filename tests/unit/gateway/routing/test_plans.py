"""Routes: what a name comes to for each tier, and what is wrong with a configuration."""

from pathlib import Path
from typing import Any

import pytest

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.prices.quota import Quota
from fairlane.gateway.routing.plans import Plan, Plans
from fairlane.gateway.routing.routes import FALLBACK_AFTER_MS, not_there
from fairlane.gateway.settings import Settings, SettingsError, load_settings
from fairlane.queues.metrics import FALLBACKS, Recorder


def plans(**settings: Any) -> Plans:
    return Plans(Settings.model_validate(settings))


def plan(made: Plans, name: str, tier: str = "free", *, image: bool = False, **more: Any) -> Plan:
    return made.plan(Caller("u", tier, "k", **more), name, 0.0, lambda: image)


def test_a_name_that_is_no_route_is_a_model() -> None:
    made = plan(plans(models={"m": {}}), "m")
    assert (made.asked, made.model, made.rule, made.fallbacks, made.downgrade) == ("m", "m", None, (), None)


def test_what_is_said_for_a_tier_beats_what_is_said_for_all_and_images_beat_both() -> None:
    made = plans(
        routes={
            "r": {
                "model": "a",
                "mode": "batch",
                "timeout_ms": 5000,
                "tiers": {"paid": {"model": "b", "mode": "stream"}},
                "vision": {"model": "v", "tiers": {"paid": {"max_output_tokens": 7}}},
            }
        }
    )

    def told(tier: str, *, image: bool) -> tuple[Any, ...]:
        rule = plan(made, "r", tier, image=image).rule
        assert rule is not None
        return rule.model, rule.mode, rule.timeout_ms, rule.max_output_tokens

    assert told("free", image=False) == ("a", "batch", 5000, 0)
    assert told("paid", image=False) == ("b", "stream", 5000, 0)
    assert told("free", image=True) == ("v", "batch", 5000, 0)
    assert told("paid", image=True) == ("v", "stream", 5000, 7)


def test_whether_there_is_an_image_is_asked_only_where_it_matters() -> None:
    made = plans(routes={"r": {"model": "a"}})

    def asked() -> bool:
        raise AssertionError("nobody needs to know")

    assert made.plan(Caller("u", "free", "k"), "r", 0.0, asked).model == "a"


def test_models_with_fallbacks_are_routes_to_themselves_and_lend_them_to_routes() -> None:
    made = plans(
        models={"a": {"fallbacks": ["b", "c"], "fallback_after_ms": 5}},
        routes={
            "r": {"model": "a"},
            "own": {"model": "a", "fallbacks": ["d"]},
            "none": {"model": "a", "fallbacks": []},
        },
        prices=[{"model": "b", "input": 1, "output": 2}],
    )
    assert plan(made, "a").fallbacks == (("b", "1000000 1000000 2000000 2000000 0"), ("c", ""))
    rules = {name: plan(made, name).rule for name in ("a", "r", "own", "none")}
    assert {
        name: rule and (rule.route, rule.fallbacks, rule.fallback_after_ms) for name, rule in rules.items()
    } == {
        "a": ("", ("b", "c"), 5),
        "r": ("r", ("b", "c"), 5),
        "own": ("own", ("d",), 5),
        "none": ("none", (), 5),
    }
    assert plan(plans(routes={"r": {"model": "m"}}), "r").rule.fallback_after_ms == FALLBACK_AFTER_MS  # type: ignore[union-attr]


def test_the_moves_that_fallbacks_allow_are_known_from_the_start() -> None:
    made = plans(
        models={"a": {"fallbacks": ["b"]}, "b": {}, "d": {}},
        routes={"chat": {"model": "d", "tiers": {"paid": {"fallbacks": ["b", "a"]}}}},
    )
    moves = made.routes.moves()
    assert moves == {("a", "b"), ("d", "b"), ("d", "a"), ("b", "a")}
    metrics = Recorder()
    metrics.fell_back("a", "b", "failed")
    metrics.declare_fallbacks(moves)
    told = metrics.values[FALLBACKS.name]
    assert (told["a", "b", "failed"], told["a", "b", "unavailable"], told["d", "a", "failed"]) == (1, 0, 0)
    assert len(told) == 2 * len(moves)


def test_the_price_is_the_routes_own_else_what_is_said_of_its_name_else_the_models() -> None:
    prices = [{"model": "r", "input": 1, "output": 1}, {"model": "*", "input": 2, "output": 2}]
    own = {"model": "m", "fallbacks": ["n"], "price": {"input": 3, "output": 3, "request": 0.5}}
    made = plans(routes={"r": {"model": "m", "fallbacks": ["n"]}, "o": own}, prices=prices)
    one, two, three = (f"{n}000000 {n}000000 {n}000000 {n}000000 " for n in (1, 2, 3))
    assert (plan(made, "r").terms.price, plan(made, "r").fallbacks) == (one + "0", (("n", f"{one}0"),))
    assert (plan(made, "o").terms.price, plan(made, "o").fallbacks) == (
        three + "500000",
        (("n", f"{three}500000"),),
    )
    assert plan(made, "m").terms.price == two + "0"


def test_who_cannot_pay_comes_to_what_the_route_says_of_the_other_tier() -> None:
    made = plans(routes={"r": {"model": "a", "tiers": {"paid": {"model": "b"}}}})
    quota = Quota(of_user=False, budget=5, per="day", otherwise="free")
    paid = plan(made, "r", "paid", quota=quota)
    assert paid.downgrade is not None
    assert (paid.model, paid.terms.quota != "", paid.tier) == ("b", True, "paid")
    assert (paid.downgrade.model, paid.downgrade.terms.quota, paid.downgrade.tier) == ("a", "", "free")


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("routes: {r: {}}", "routes.r", "it has no model for the tier 'free': set `model`"),
        (
            "routes: {r: {model: m, tiers: {gold: {}}}}",
            "routes.r.tiers.gold",
            "no queue has the tier 'gold'; there are free, paid",
        ),
        (
            "routes: {r: {model: m, template: t}}",
            "routes.r.template",
            "there is no template 't'; there are none",
        ),
        ("routes: {r: {modell: m}}", "routes.r.modell", "unknown setting; did you mean model?"),
        (
            "routes: {r: {model: m, tiers: {paid: {modell: m}}}}",
            "routes.r.tiers.paid.modell",
            "unknown setting; did you mean model?",
        ),
        ("models: {m: {fallbacks: [m]}}", "models.m.fallbacks", "'m' falls back to itself"),
        (
            "{routes: {t: {model: m, tiers: {paid: {max_output_tokens: 5}}}}, templates: {t: "
            "{messages: [{role: user, content: x}], parameters: {max_tokens: 6}}}}",
            "routes.t.tiers.paid.max_output_tokens",
            "its template asks for 6 tokens",
        ),
        ("models: {m: {fallbacks: ['*']}}", "models.m.fallbacks", "'*' is not the name of a model"),
        (
            'routes: {r: {model: m, tiers: {paid: {fallbacks: ["a\\tb"]}}}}',
            "routes.r.tiers.paid.fallbacks",
            "is not the name",
        ),
        (
            "routes: {r: {model: m, vision: {model: '*'}}}",
            "routes.r.vision.model",
            "'*' is not the name of a model",
        ),
        ("templates: {t: {}}", "templates.t", "it has no messages: set `messages`, or `locales`"),
        (
            "templates: {t: {locales: {en: [{role: user, content: x}]}}}",
            "templates.t",
            "without `messages`, `default_locale` must be one of its locales",
        ),
        ("templates: {t: {messages: [{role: user, content: '{{ x'}]}}", "templates.t", "message 1: line 1"),
        (
            "templates: {t: {messages: [{role: king, content: x}]}}",
            "templates.t.messages[0].role",
            "Input should be",
        ),
        (
            "templates: {t: {messages: [{role: user, content: x}], parameters: {model: m}}}",
            "templates.t.parameters",
            "model is not a parameter",
        ),
    ],
)
def test_a_mistake_is_named_at_its_place(tmp_path: Path, text: str, place: str, sentence: str) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as wrong:
        load_settings(file, {}, {})
    (problem,) = wrong.value.problems
    assert str(problem).startswith(f"{file}: {place}")
    assert sentence in str(problem)


def test_the_nearest_names_are_told_else_some_that_there_are() -> None:
    known = ["job_match", "interview", "resume", "summary"]
    assert not_there("job_mach", known) == "There is no template 'job_mach'; did you mean job_match?"
    assert (
        not_there("zzzz", known) == "There is no template 'zzzz'; there are interview, job_match, resume, …"
    )
    assert not_there("zzzz", ["b", "a"]) == "There is no template 'zzzz'; there are a, b"
    assert not_there("x", []) == "There is no template 'x'"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("models: {a: {fallbacks: [secnd]}, second: {}}", "models.a leads to secnd"),
        ("models: {a: {}}\nroutes: {r: {model: a, vision: {model: eyes}}}", "routes.r leads to eyes"),
        ("models: {a: {}}\nroutes: {r: {model: a, tiers: {free: {model: x}}}}", "routes.r leads to x"),
        ("models: {a: {fallbacks: [b]}, b: {}}\nroutes: {r: {model: b, fallbacks: [a]}}", ""),
        ("routes: {r: {model: of-a-worker}}", ""),
    ],
)
def test_a_name_that_the_configuration_says_nothing_of_is_noted(tmp_path: Path, text: str, note: str) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(text)
    told = [sentence for sentence in load_settings(file, {}, {})[1] if " leads to " in sentence]
    assert [sentence[: len(note)] for sentence in told] == ([note] if note else [])
