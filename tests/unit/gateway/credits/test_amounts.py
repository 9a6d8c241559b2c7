"""Amounts of credits: read exactly or refused, told exactly."""

import json
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.prices.prices import MAX_CREDITS, MICRO, credits_of, plain_credits, read_credits


@pytest.mark.parametrize(
    ("value", "micro"),
    [
        *((0, 0), (1, MICRO), (12.5, 12_500_000), ("12.5", 12_500_000), (" 12.50 ", 12_500_000)),
        *((0.1, 100_000), (0.000001, 1), (1e-6, 1), (1e3, 1000 * MICRO), ("0.1000000000", 100_000)),
        *((0.29, 290_000), (1.005, 1_005_000), (999_999_999.999999, 999_999_999_999_999)),
        *((MAX_CREDITS, MAX_CREDITS * MICRO), ("+2", 2 * MICRO), (-0.0, 0)),
    ],
)
def test_a_decimal_is_read_as_it_is_written(value: Any, micro: int) -> None:
    assert read_credits(value) == micro


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        *(
            (value, "should be a number of credits, such as 12.5")
            for value in (True, None, [], "", "a", "1e3", "1,5")
        ),
        *(
            (value, "should be a number of credits, such as 12.5")
            for value in ("٣", "1.", ".5", "0x10", "1_000")
        ),
        *((value, "should be a number of credits, such as 12.5") for value in (float("nan"), "9" * 21)),
        *(
            (value, "has more than 6 decimals")
            for value in (0.1234567, "0.0000001", 1e-7, "1." + "0" * 6 + "1")
        ),
        *((value, "should be from 0 to 1000000000 credits") for value in (-1, "-0.000001", MAX_CREDITS + 1)),
        *((value, "should be from 0 to 1000000000 credits") for value in (float("inf"), 10**20, 1e300)),
    ],
)
def test_another_one_is_refused_with_what_is_wrong(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_credits(value)


def test_a_number_of_thousands_of_digits_is_refused_too() -> None:
    with pytest.raises(ValueError, match="should be from 0"):
        read_credits(10**5000)


def test_what_may_be_taken_back_is_less_than_nothing() -> None:
    assert read_credits("-2.5", least=-10) == -2_500_000
    with pytest.raises(ValueError, match="from -10 to 10 credits"):
        read_credits(-10.000001, least=-10, most=10)


@given(st.integers(-MAX_CREDITS * MICRO, MAX_CREDITS * MICRO))
def test_what_is_told_is_read_back_also_by_way_of_json_and_yaml(micro: int) -> None:
    told = credits_of(micro)
    assert told * MICRO == micro
    for text in (f"{told:f}", str(told)):
        assert read_credits(json.loads(f"[{text}]")[0], least=-MAX_CREDITS) == micro
        assert read_credits(json.loads(f'["{told:f}"]')[0], least=-MAX_CREDITS) == micro
    assert read_credits(yaml.safe_load(f"a: {told:f}")["a"], least=-MAX_CREDITS) == micro
    assert Decimal(json.dumps(plain_credits(micro))) == told
