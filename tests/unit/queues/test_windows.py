"""How windows of a model are written."""

import pytest

from fairlane.queues.windows import MAX_REQUESTS, Window, read_windows


def test_windows_are_read() -> None:
    assert read_windows("50/1s") == (Window(50, 1000),)
    assert read_windows(" 3/250ms,1000 / 1m, 9/24h") == (
        Window(3, 250),
        Window(1000, 60_000),
        Window(9, 86_400_000),
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "should be like"),
        ("50", "should be like"),
        ("50/s", "should be like"),
        ("50/1s,", "should be like"),
        ("-1/1s", "should be like"),
        ("1/1d", "should be like"),
        ("٣/1s", "should be like"),
        ("0/1s", "1 to 10,000 requests in each window"),
        (f"{MAX_REQUESTS + 1}/1s", "1 to 10,000 requests in each window"),
        ("1/9ms", "10ms to 24h"),
        ("1/25h", "10ms to 24h"),
        ("1/60s, 2/1m", "one window of each length"),
        ("1/1s, 2/2s, 3/3s, 4/4s", "at most 3 windows"),
    ],
)
def test_an_invalid_window_is_rejected_with_the_valid_form(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_windows(text)
