import pytest

from fairlane.streaming.views.choice import finish_of_result


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"content":"a","finish_reason":"length"}', "length"),
        (b'{"content":"a","finishReason":"stop"}', "stop"),
        (rb'{"content":"a","\u0066inish_reason":"length"}', "length"),
        (rb'{"content":"a","f\u0069nishR\u0065ason":"stop"}', "stop"),
        (b'{"choices":[{"finish_reason":"length"}],"finish_reason":"stop"}', "length"),
        (b'{"choices":[{"index":0}],"finish_reason":"stop"}', None),
        (b'{"content":"finish_reason"}', None),
        (b'{"content":"a"}', None),
        (b"null", None),
        (b"", None),
    ],
)
def test_the_reason_of_a_result_is_found_however_its_name_is_written(
    result: bytes, expected: str | None
) -> None:
    assert finish_of_result(result) == expected
