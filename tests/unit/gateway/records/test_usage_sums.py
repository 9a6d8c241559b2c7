"""What ended tasks add to the sums."""

from tests.support.records import entry

from fairlane.gateway.records.entries import read_usage
from fairlane.gateway.records.usage import DAY_MS, UsageTable


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
