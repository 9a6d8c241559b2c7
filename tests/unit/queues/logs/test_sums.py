"""A line in the log for what may happen very often."""

from fairlane.queues.logs.sums import Allowance, FewLines, SummedLine


def test_it_is_written_at_once_and_then_once_a_minute_with_the_sum() -> None:
    lines: list[int] = []
    clock = [100.0]
    line = SummedLine(lines.append, now=lambda: clock[0])
    for number, at in ((5, 100.0), (1, 101.0), (2, 159.0), (4, 160.0), (8, 230.0)):
        clock[0] = at
        line.add(number)
    assert lines == [5, 7, 8]


def test_an_allowance_grows_with_time_and_no_further_than_its_beginning() -> None:
    clock = [100.0]
    allowance = Allowance(lambda: clock[0])
    assert sum(allowance.take() for _ in range(100)) == 20
    clock[0] += 3
    assert sum(allowance.take() for _ in range(100)) == 6
    clock[0] += 3600
    assert sum(allowance.take() for _ in range(100)) == 20


def test_lines_that_were_left_out_are_counted_in_the_next_one() -> None:
    clock, written = [0.0], []
    lines = FewLines(lambda: clock[0])
    for number in range(30):
        lines.tell(lambda event, **facts: written.append(facts), "it happened", number=number)
    assert written == [{"number": number} for number in range(20)]
    clock[0] += 1
    for number in (30, 31):
        lines.tell(lambda event, **facts: written.append(facts), "it happened", number=number)
    assert written[20:] == [{"number": 30, "and_others_before": 10}, {"number": 31}]
