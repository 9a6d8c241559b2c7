"""What ended tasks add to the sums: invented names of models are bounded, and those of other keys are kept."""

from tests.support.records import NOON, entry

from fairlane.gateway.records.entries import read_usage
from fairlane.gateway.usage.usage import DAY_MS, MAX_NAMES, UsageTable
from fairlane.queues.metrics import OTHER


def test_each_key_has_a_limit_of_invented_names_a_day() -> None:
    table = UsageTable(str, lambda: {"configured"})

    def models(*asked: str, key: str = "site", scheduled: str = "*", ended: int = NOON) -> set[str]:
        packed = [entry(name, key=key, model=scheduled, asked=name, ended=ended) for name in asked]
        (_, of_all), (_, of_users), _ = table.add_up(read_usage(one, str) for one in packed)
        assert {key[4] for key in of_all} == {key[4] for key in of_users}
        return {key[4] for key in of_all}

    named = models(*(f"made-up-{number}" for number in range(2000)))
    assert (len(named), OTHER in named) == (MAX_NAMES + 1, True)
    assert models("mine", key="acme") == models("mine", ended=NOON + DAY_MS) == {"mine"}
    assert models("made-up-7", "one-more") == {"made-up-7", OTHER}
    assert models("configured") | models("offered", scheduled="offered") == {"configured", "offered"}


def test_only_tasks_with_a_route_are_added_up_by_it() -> None:
    tasks = [
        entry("a", route="summary"),
        entry("b", route="summary", model="m2"),
        entry("c", price="1 1 1 1 1"),
    ]
    (_, of_all), _, (_, of_routes) = UsageTable(str).add_up(
        read_usage(packed, lambda queue: queue) for packed in tasks
    )
    assert sorted((key[3], key[4], sums[0]) for key, sums in of_routes.items()) == [
        ("summary", "m", 1),
        ("summary", "m2", 1),
    ]
    assert sum(sums[0] for key, sums in of_all.items() if key[0] == DAY_MS) == 3


def test_an_entry_of_the_release_before_has_no_route() -> None:
    (old, paid) = (read_usage(entry("a", price=price), str) for price in ("", "1 1 1 1 1"))
    assert (old.route, old.template, paid.route, paid.template_version) == ("", "", "", "")
