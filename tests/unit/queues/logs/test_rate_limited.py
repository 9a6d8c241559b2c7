"""A line in the log for what can happen very often."""

from typing import Any

from fairlane.queues.logs.rate_limited import RateLimit, RateLimitedLogger


def test_a_limit_grows_with_time_up_to_its_burst() -> None:
    clock = [100.0]
    limit = RateLimit(lambda: clock[0])
    assert sum(limit.take() for _ in range(100)) == 20
    clock[0] += 3
    assert sum(limit.take() for _ in range(100)) == 6
    clock[0] += 3600
    assert sum(limit.take() for _ in range(100)) == 20


def test_lines_that_were_left_out_are_counted_in_the_next_one() -> None:
    clock, written = [0.0], list[dict[str, Any]]()

    def write(_event: str, **facts: Any) -> None:
        written.append(facts)

    logger = RateLimitedLogger(lambda: clock[0])
    for number in range(30):
        logger.log(write, "it happened", number=number)
    assert written == [{"number": number} for number in range(20)]
    clock[0] += 1
    for number in (30, 31):
        logger.log(write, "it happened", number=number)
    assert written[20:] == [{"number": 30, "and_others_before": 10}, {"number": 31}]
