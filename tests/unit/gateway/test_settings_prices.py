"""Prices and quotas in the configuration: what they come to, and what is wrong is named at its place."""

import json
from pathlib import Path

import pytest

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.prices.quota import Quota
from fairlane.gateway.settings import Settings, SettingsError, load_settings
from fairlane.gateway.settings.flatten import flatten

SHA = "ab" * 32
PRICES = """
prices:
  - {model: deepseek-chat, input: 0.27, cached_input: 0.07, output: 1.1}
  - {model: deepseek-chat, since: 2027-01-01, input: "0.30", output: 1, reasoning: 2.000001, request: 0.01}
  - {model: "*", since: 2026-06-01T00:00:00+02:00, input: 1000000, output: 1000000}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, environ: dict[str, str] | None = None) -> tuple[Settings, list[str]]:
    Path("fairlane.yaml").write_text(text, encoding="utf-8")
    return load_settings(None, {}, environ or {})


def problems(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(text, environ)
    return [str(problem) for problem in raised.value.problems]


def test_prices_of_the_file_hold_in_their_time() -> None:
    settings, warnings = load(PRICES)
    assert warnings == []
    first, second, other = (entry.period for entry in settings.prices)
    assert first[:2] == ("deepseek-chat", None)
    assert first.price.id == "0.27/0.07/1.1/1.1/0"
    assert second[:2] == ("deepseek-chat", 1_798_761_600_000)
    assert second.price.id == "0.3/0.3/1/2.000001/0.01"
    assert other.since == 1_780_264_800_000
    assert other.price.input == 10**12


def test_they_are_shown_as_they_are_written() -> None:
    settings, _ = load(PRICES + "budget_timezone: Europe/Berlin\n")
    rows = {leaf.name: leaf.value for leaf in flatten(settings)}
    assert [rows[f"prices[0].{name}"] for name in ("since", "cached_input", "request")] == [None, 0.07, 0]
    assert rows["prices[1].since"] == "2027-01-01T00:00:00+00:00"
    assert rows["budget_timezone"] == "Europe/Berlin"
    assert rows["prices[1].reasoning"] == 2.000001
    assert Settings.model_validate(json.loads(settings.model_dump_json())).prices == settings.prices


NUMBER = 'should be a number of credits, such as 12.5 or "12.5"'
DATE = "should be a date such as 2027-01-31 (UTC), or an instant such as 2027-01-31T06:00:00+01:00"
NAMES = "model, since, input, cached_input, output, reasoning, request"


@pytest.mark.parametrize(
    ("entry", "place", "sentence"),
    [
        ("{model: m, input: 1}", "prices[0].output", "is required"),
        ("{input: 1, output: 1}", "prices[0].model", "is required"),
        ("{model: m, input: -1, output: 1}", "prices[0].input", "should be from 0 to 100000000 credits; got -1"),
        ("{model: m, input: 1, output: 0.1234567}", "prices[0].output", "has more than 6 decimals; got 0.1234567"),
        ("{model: m, input: 1, output: cheap}", "prices[0].output", NUMBER + "; got 'cheap'"),
        ("{model: m, input: .nan, output: 1}", "prices[0].input", NUMBER + "; got nan"),
        ("{model: m, input: 100000001, output: 1}", "prices[0].input", "should be from 0 to 100000000 credits; got 100000001"),
        ("{model: m, inptu: 1, input: 1, output: 1}", "prices[0].inptu", "unknown setting; did you mean input?"),
        ("{model: m, input: 1, output: 1, since: 2026-02-30}", "prices[0].since", DATE + "; got '2026-02-30'"),
        ("{model: m, input: 1, output: 1, since: 1960-01-01}", "prices[0].since", "should lie after 1970"),
        ("{model: m, input: 1, output: 1, since: soon}", "prices[0].since", DATE + "; got 'soon'"),
        ("5", "prices[0]", "Input should be settings by their names: " + NAMES),
    ],
)  # fmt: skip
def test_a_mistake_is_named_at_its_place(entry: str, place: str, sentence: str) -> None:
    assert problems(f"prices:\n  - {entry}\n") == [f"fairlane.yaml: {place}: {sentence}"]


def test_two_prices_that_start_at_the_same_time_are_an_error() -> None:
    text = PRICES + "  - {model: deepseek-chat, since: 2027-01-01, input: 1, output: 1}\n"
    assert problems(text) == [
        "fairlane.yaml: prices[1], fairlane.yaml: prices[3]: two prices of 'deepseek-chat' start at the same time"
    ]


@pytest.mark.parametrize("zone", ["Europe/Berlim", "Europe", "../UTC", "", "UTC\\0"])
def test_a_zone_must_exist(zone: str) -> None:
    (problem,) = problems(f'budget_timezone: "{zone}"\n')
    assert problem.startswith(
        "fairlane.yaml: budget_timezone: should be the name of a time zone, such as Europe/Berlin or UTC"
    )


def test_a_number_of_thousands_of_digits_is_a_problem_and_no_crash() -> None:
    assert problems("port: " + "9" * 5000) == ["fairlane.yaml: not valid YAML"]


def key(quota: str, more: str = "") -> str:
    return f"keys:\n  - {{id: app, sha256: {SHA}, {more} quota: {quota}}}\n"


def test_a_key_says_who_pays() -> None:
    def quota(text: str, more: str = "") -> Quota | None:
        settings, _ = load(key(text, more) + 'prices: [{model: "*", input: 1, output: 1}]\n')
        (credential,) = Callers(settings)._callers.values()
        return credential.principal.quota

    assert quota("null") is None
    assert quota("{}") == Quota(of_user=False)
    assert quota("{of: user, budget: 12.5, per: day, otherwise: paid}", "delegating: true,") == Quota(
        of_user=True, budget=12_500_000, per="day", otherwise="paid"
    )


@pytest.mark.parametrize(
    ("quota", "place", "sentence"),
    [
        ("{of: user}", "quota.of", "only a delegating key has several users: set `of: key`, or make the key delegating"),
        ("{of: nobody}", "quota.of", "Input should be 'key' or 'user'"),
        ("{budget: 5}", "quota.per", "a budget needs `per`: day or month"),
        ("{per: day}", "quota.budget", "`per` is the period of a budget: set `budget`, too"),
        ("{budget: 5, per: week}", "quota.per", "Input should be 'day' or 'month'"),
        ("{budget: -5, per: day}", "quota.budget", "should be from 0 to 1000000000 credits"),
        ("{otherwise: fre}", "quota.otherwise", "no queue has the tier 'fre'; there are free, paid"),
        ("{otherwise: free}", "quota.otherwise", "it is the tier of the key itself: set another one"),
        ("{budgt: 5}", "quota.budgt", "unknown setting; did you mean budget?"),
    ],
)  # fmt: skip
def test_a_quota_that_cannot_be_meant_is_refused(quota: str, place: str, sentence: str) -> None:
    (problem,) = problems(key(quota))
    assert problem == f"fairlane.yaml: keys[0].{place}: {sentence}"


def test_what_costs_nothing_though_somebody_is_to_pay_is_said() -> None:
    def said(models: str, prices: str = "") -> list[str]:
        text = key("{}", f"models: {models},") + f"prices: [{prices}]\nmodels: {{m: {{}}, n: {{}}}}\n"
        return load(text)[1]

    def sentence(which: str) -> list[str]:
        return [f"key 'app' has a quota, but {which} have no price now: its tasks cost nothing there"]

    assert said('["*"]') == sentence("m, n")
    assert said('["*"]', "{model: m, input: 1, output: 1}, {model: n, input: 1, output: 1}") == sentence(
        "models that are not listed"
    )
    assert said("[m]", "{model: m, input: 1, output: 1, since: 2100-01-01}") == sentence("m")
    assert said("[m]", "{model: m, input: 1, output: 1}") == []
    assert said('["*"]', '{model: "*", input: 1, output: 1}') == []
