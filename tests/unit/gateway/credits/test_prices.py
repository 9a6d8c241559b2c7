"""What tasks cost: by which price, and how much."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.prices.prices import Period, PriceTable, price, unpack

ONE = price(1_000_000, 1_000_000, 1_000_000, 1_000_000, 0)
TWO = price(2_000_000, 2_000_000, 2_000_000, 2_000_000, 0)
numbers = st.integers(0, 10**14)
tokens = st.none() | st.integers(0, 4_194_304)


def test_a_price_says_its_numbers_in_credits_and_is_packed_without_a_loss() -> None:
    deepseek = price(270_000, 70_000, 1_100_000, 1_100_000, 1)
    assert deepseek.id == "0.27/0.07/1.1/1.1/0.000001"
    assert deepseek.packed == "270000 70000 1100000 1100000 1"
    assert unpack(deepseek.packed) == deepseek
    assert price(*[10**14] * 5).id == "/".join(["100000000"] * 5)


@pytest.mark.parametrize("text", ["", "1 2 3 4", "1 2 3 4 5 6", "a b c d e", "1 2 3 4 5.5"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(text)


def test_tokens_cost_their_part_of_a_million() -> None:
    deepseek = price(270_000, 70_000, 1_100_000, 2_000_000, 500)
    # 200 of 1,000 from the cache, 50 of 300 to think with
    assert deepseek.cost(1000, 300, 200, 50) == 500 + ceil(0.8 * 270 + 0.2 * 70 + 0.25 * 1100 + 0.05 * 2000)
    assert deepseek.cost(None, None, None, None) == 500
    assert deepseek.cost(10, None, 1000, 1000) == 500 + 1, "no more of the input is cached than there is"


def test_it_is_rounded_up_once() -> None:
    smallest = price(1, 1, 1, 1, 0)
    assert smallest.cost(1, 0, 0, 0) == 1
    assert smallest.cost(1, 1, 1, 1) == 1
    assert smallest.cost(999_999, 2, 0, 0) == 2
    assert smallest.cost(0, 0, 0, 0) == 0


@given(st.tuples(*[numbers] * 5), st.tuples(*[tokens] * 4))
def test_cost_is_the_formula_and_less_than_scripts_can_count(
    numbers: tuple[int, int, int, int, int], used: tuple[int | None, int | None, int | None, int | None]
) -> None:
    of_input, of_cached, of_output, of_reasoning, request = numbers
    read, wrote, cached, reasoning = (count or 0 for count in used)
    cached, reasoning = min(cached, read), min(reasoning, wrote)
    micro = (read - cached) * of_input + cached * of_cached
    micro += (wrote - reasoning) * of_output + reasoning * of_reasoning
    cost = price(*numbers).cost(*used)
    assert cost == request + ceil(Fraction(micro, 1_000_000)) < 2**53


def test_the_price_of_an_instant_is_the_models_own_else_that_of_any() -> None:
    table = PriceTable(
        [
            Period("m", 200, TWO),
            Period("m", 100, ONE),
            Period("*", None, price(3, 3, 3, 3, 0)),
            Period("*", 300, price(0, 0, 0, 0, 0)),
        ]
    )
    found = [table.at("m", now) for now in (99, 100, 199.9, 200, 10**15)]
    assert [one and one.input for one in found] == [3, 1_000_000, 1_000_000, 2_000_000, 2_000_000]
    assert [one and one.input for one in (table.at("other", 299), table.at("other", 300))] == [3, 0]
    assert table
    assert not PriceTable()
    assert PriceTable().at("m", 0) is None
