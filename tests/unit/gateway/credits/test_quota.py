"""Budgets begin with the days and months of a zone, however long these are there."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.prices.quota import MAX_TEXTS, Budgets, Per, Quota, window_at

HOUR_MS = 3_600_000
ZONES = ("UTC", "Europe/Berlin", "America/Havana", "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_day_is_as_long_as_the_zone_makes_it() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    spring, autumn = (
        window_at("day", berlin, ms(f"{day}T12:00+00:00")) for day in ("2026-03-29", "2026-10-25")
    )
    assert [(day.end - day.begin) / HOUR_MS for day in (spring, autumn)] == [23, 25]
    assert spring.begin == ms("2026-03-29T00:00+01:00")
    assert spring.next == ms("2026-03-31T00:00+02:00")


def test_the_hour_that_comes_twice_is_of_one_day() -> None:
    havana = ZoneInfo("America/Havana")  # at 1:00 it is 0:00 again
    first, second = ms("2026-11-01T04:30+00:00"), ms("2026-11-01T05:30+00:00")
    assert window_at("day", havana, first) == window_at("day", havana, second)
    assert window_at("day", havana, first - HOUR_MS).end == ms("2026-11-01T04:00+00:00")


def test_a_day_that_begins_at_one_begins_there() -> None:
    beirut = ZoneInfo("Asia/Beirut")  # clocks go from 0:00 to 1:00
    day = window_at("day", beirut, ms("2026-03-29T12:00+00:00"))
    assert day.begin == ms("2026-03-28T22:00+00:00")
    assert (day.end - day.begin) / HOUR_MS == 23


@pytest.mark.parametrize(
    ("now", "begin", "end", "after"),
    [
        (
            "2027-01-31T23:30+01:00",
            "2027-01-01T00:00+01:00",
            "2027-02-01T00:00+01:00",
            "2027-03-01T00:00+01:00",
        ),
        (
            "2028-02-29T12:00+01:00",
            "2028-02-01T00:00+01:00",
            "2028-03-01T00:00+01:00",
            "2028-04-01T00:00+02:00",
        ),
        (
            "2026-12-31T23:30+00:00",
            "2027-01-01T00:00+01:00",
            "2027-02-01T00:00+01:00",
            "2027-03-01T00:00+01:00",
        ),
    ],
)
def test_months_are_those_of_the_zone(now: str, begin: str, end: str, after: str) -> None:
    assert window_at("month", ZoneInfo("Europe/Berlin"), ms(now)) == (ms(begin), ms(end), ms(after))


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["day", "month"]),
    st.integers(ms("2000-01-01T00:00+00:00"), ms("2037-01-01T00:00+00:00")),
)
def test_windows_follow_each_other_without_a_gap(zone: str, per: Per, now: int) -> None:
    here = ZoneInfo(zone)
    window = window_at(per, here, now)
    assert window.begin <= now < window.end <= window.next
    following = window_at(per, here, window.end)
    assert following[:2] == (window.end, max(following.end, window.next))
    assert window_at(per, here, window.begin) == window == window_at(per, here, window.end - 1)
    longest = timedelta(hours=26) if per == "day" else timedelta(days=31, hours=2)
    assert window.end - window.begin <= longest / timedelta(milliseconds=1)


def test_a_quota_is_told_by_who_pays_and_the_ends_of_its_windows() -> None:
    budgets = Budgets("Europe/Berlin")
    now = ms("2026-11-24T10:00+00:00")
    days = ("2026-11-24T00:00+01:00", "2026-11-25T00:00+01:00", "2026-11-26T00:00+01:00")
    begin, end, after = map(ms, days)
    day = Quota(of_user=True, budget=20_000_000, per="day")
    assert budgets.text(Quota(of_user=False), now) == "k"
    assert budgets.text(day, now) == f"u 20000000 d {begin} {end} {after}"
    assert budgets.text(day, end - 1) is budgets.text(day, now), "it is kept while the window lasts"
    assert budgets.text(day, end).split()[3:5] == [str(end), str(after)]
    assert budgets.text(day, now) == f"u 20000000 d {begin} {end} {after}", (
        "a clock that goes back is believed"
    )


def test_texts_of_quotas_that_are_no_more_take_no_memory() -> None:
    budgets = Budgets()
    for budget in range(1, MAX_TEXTS + 50):
        budgets.text(Quota(of_user=False, budget=budget), 0)
    assert len(budgets._texts) <= MAX_TEXTS


def test_who_pays() -> None:
    assert Quota(of_user=False).subject("site", "site/ann") == "k:site"
    assert Quota(of_user=True).subject("site", "site/ann") == "u:site/ann"
    assert (
        datetime.fromtimestamp(Budgets().window("day", ms("2026-11-24T10:00+00:00")).end / 1000, UTC).hour
        == 0
    )
