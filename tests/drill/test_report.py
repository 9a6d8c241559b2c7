"""A drill says what is not as it must be. Pure."""

from decimal import Decimal

import pytest
from tests.drill.callers import Call, End
from tests.drill.faults import FALLBACK, FAULTS, PRIMARY
from tests.drill.report import Row, render

GONE = next(fault for fault in FAULTS if fault.name == "gone")
GOOD = [Call(End.ANSWERED, "spare", FALLBACK, 0.01) for _ in range(10)]
PAID = [(f"t{number}", Decimal("0.25")) for number in range(10)]


def row(**changes: object) -> Row:
    said = {"calls": list(GOOD), "attempts": (5, 0), "paid": list(PAID), "owed": Decimal("2.5")}
    return Row(GONE, 1000, **{**said, "granted": Decimal(10), "balance": Decimal("7.5"), **changes})  # type: ignore[arg-type]


def test_a_drill_in_which_all_went_well_says_nothing_else() -> None:
    assert (row().wrong(), row().late()) == ([], [])
    assert "BROKEN" not in render([row()])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"calls": [*GOOD, Call(End.FAILED, why="502 UPSTREAM_ERROR")]}, "1 x 502 UPSTREAM_ERROR"),
        ({"calls": [Call(End.ANSWERED, "main", PRIMARY) for _ in range(10)]}, "no answer of the fallback"),
        ({"attempts": (5, 5)}, "5 attempts at what is known to be broken"),
        ({"paid": [*PAID, PAID[0]]}, "paid twice: t0"),
        ({"paid": PAID[1:]}, "9 debits of 10 answers"),
        ({"owed": Decimal(3)}, "paid 2.50, owed 3"),
        ({"balance": Decimal(7)}, "a balance of 7 where 7.5 is left"),
        (
            {"missing": ["the breaker of main is open"], "mended_s": 180.0},
            "after 180 s: the breaker of main is open",
        ),
    ],
)
def test_a_drill_names_what_went_wrong(changes: dict[str, object], said: str) -> None:
    assert said in row(**changes).wrong()
    assert f"BROKEN {GONE.what}: {said}" in render([row(**changes)])


def test_a_late_first_output_is_told_apart_from_what_must_never_be() -> None:
    late = row(calls=[Call(End.ANSWERED, "spare", FALLBACK, 2.5) for _ in range(10)])
    assert late.wrong() == []
    assert late.late() == ["99 % of first outputs came within 2500 ms, not within 2000"]
