"""What ended tasks add to the sums: names that callers made up are bounded, and nobody else's are lost by it."""

from collections.abc import Iterable

from tests.support.records import NOON, entry

from fairlane.gateway.database.tables import UsageRow
from fairlane.gateway.records import usage
from fairlane.gateway.records.entries import read_usage
from fairlane.gateway.records.usage import DAY_MS, MAX_NAMES, UsageTable
from fairlane.queues.metrics import OTHER


def row(model: str, *, key: str = "site", scheduled: str = "*", ended: int = NOON) -> UsageRow:
    packed = entry(f"{key}/{model}", key=key, model=scheduled, asked=model, ended=ended)
    return read_usage(packed, lambda queue: queue)


def models(table: UsageTable, rows: Iterable[UsageRow]) -> set[str]:
    """Those that sums are told of."""
    (_, of_all), (_, of_users), _ = table.add_up(rows)
    named = {key[4] for key in of_all}
    assert named == {key[4] for key in of_users}
    return named


def invented(count: int, *, key: str = "site", ended: int = NOON) -> list[UsageRow]:
    return [row(f"made-up-{number}", key=key, ended=ended) for number in range(count)]


def table() -> UsageTable:
    return UsageTable(lambda queue: queue, lambda: {"configured": None})


def test_one_key_has_so_many_names_a_day_and_takes_none_from_others() -> None:
    sums = table()
    named = models(sums, invented(2000))
    assert (len(named), OTHER in named) == (MAX_NAMES + 1, True)
    assert models(sums, [row("mine", key="acme")]) == {"mine"}
    assert models(sums, [row("mine", ended=NOON + DAY_MS)]) == {"mine"}
    assert models(sums, [row("made-up-7"), row("one-more")]) == {"made-up-7", OTHER}


def test_models_that_are_configured_or_offered_always_have_their_name() -> None:
    sums = table()
    models(sums, invented(200))
    assert models(sums, [row("configured"), row("offered", scheduled="offered")]) == {"configured", "offered"}


def test_what_is_remembered_of_names_is_bounded() -> None:
    sums = table()
    for number in range(2 * usage.MAX_KEYS):
        models(sums, invented(1, key=f"key-{number}"))
        models(sums, invented(1, key="busy"))
    assert len(sums._names) == usage.MAX_KEYS
    models(sums, invented(MAX_NAMES, key="busy"))
    assert models(sums, [row("one-more", key="busy")]) == {OTHER}


def test_only_tasks_with_a_route_are_added_up_by_it() -> None:
    tasks = [
        entry("a", route="summary"),
        entry("b", route="summary", model="m2"),
        entry("c", price="1 1 1 1 1"),
    ]
    (_, of_all), _, (_, of_routes) = table().add_up(
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
