"""The protocol core, without a socket: frames in, frames and effects out."""

from typing import Any

import msgspec

from fairlane.workers import protocol
from fairlane.workers.sdk.session.ledger import KEEP_S, Ledger
from fairlane.workers.sdk.session.session import Session, Start


class Bench:
    """A session with what it shares, and a clock moved by hand."""

    def __init__(self, slots: int = 1, *, shared: "Bench | None" = None) -> None:
        self.now = 0.0
        self.slots: int = shared.slots if shared else slots
        self.running: set[int] = shared.running if shared else set()
        self.ledger: Ledger = shared.ledger if shared else Ledger()
        self.session = Session(
            lambda: protocol.Register(instance_id="i", name="n", models=["m"]),
            free_slots=lambda: self.slots - len(self.running),
            ledger=self.ledger,
            serves=lambda model, task_type: model == "m" and task_type == "openaiLike",
            clock=lambda: self.now,
            wake=lambda: None,
        )

    def ready(self) -> "Bench":
        self.session.begin()
        assert [m["type"] for m in self.sent()] == ["register"]
        self.welcome()
        return self

    def welcome(self) -> Any:
        message = protocol.Registered("w", 10, 30, protocol.Limits(4096), 2)
        return self.session.receive(protocol.encoder.encode(message))

    def receive(self, **message: Any) -> Any:
        return self.session.receive(msgspec.json.encode(message))

    def task(self, task_id: str = "t", attempt: int = 1, model: str = "m") -> Any:
        return self.receive(
            type="task", taskType="openaiLike", taskId=task_id, payload={}, attempt=attempt, model=model
        )

    def start(self, task_id: str = "t", attempt: int = 1) -> Start:
        effect = self.task(task_id, attempt)
        assert isinstance(effect, Start)
        self.running.add(id(effect))
        return effect

    def finish(self, start: Start, result: bytes = b"1") -> bool:
        done = self.session.finish(
            start.output,
            protocol.TaskResult(
                task_id=start.task.task_id, attempt=start.task.attempt, result=msgspec.Raw(result)
            ),
        )
        self.running.discard(id(start))
        return done

    def idle(self) -> bool:
        return self.session.idle

    def sent(self) -> list[dict[str, Any]]:
        frames = []
        while (frame := self.session.next_frame()) is not None:
            frames.append(msgspec.json.decode(frame))
        return frames


def test_register_comes_first_and_registered_makes_it_ready() -> None:
    bench = Bench(slots=3)
    bench.session.begin()
    (register,) = bench.sent()
    assert (register["type"], register["slots"], register["protocols"]) == ("register", 3, [2])
    effect = bench.welcome()
    assert (type(effect), effect.heartbeat_ms) == (protocol.Registered, 10)


def test_a_task_is_acknowledged_then_streamed_then_answered() -> None:
    bench = Bench().ready()
    start = bench.start()
    bench.session.emit(start.output, b'{"content":"a"}')
    bench.session.emit(start.output, b'{"content":"b"}')
    assert bench.finish(start)
    ack, chunk, result = bench.sent()
    assert ack == {"type": "taskAck", "taskId": "t", "attempt": 1}
    assert chunk["deltas"] == [{"content": "a"}, {"content": "b"}]
    assert (result["type"], result["lastSeq"], result["result"]) == ("taskResult", 1, 1)


def test_that_a_request_has_left_is_said_ahead_of_all_output() -> None:
    bench = Bench(slots=2).ready()
    start, other = bench.start("a"), bench.start("b")
    bench.session.emit(other.output, b'{"content":"x"}')
    bench.session.sent(start.output)
    frames = bench.sent()
    assert frames[0] == {"type": "taskSent", "taskId": "a", "attempt": 1}
    bench.finish(start)
    bench.session.sent(start.output)
    assert [frame["type"] for frame in bench.sent()] == ["taskResult"]


def test_that_a_request_has_left_on_a_lost_connection_is_said_to_nobody() -> None:
    bench = Bench().ready()
    start = bench.start()
    bench.session.end()
    bench.session.sent(start.output)
    assert bench.sent() == []


def test_a_task_beyond_the_slots_is_rejected_for_capacity() -> None:
    bench = Bench(slots=1).ready()
    bench.start("a")
    bench.sent()
    assert bench.task("b") is None
    (reject,) = bench.sent()
    assert (reject["type"], reject["taskId"], reject["reason"]) == ("taskReject", "b", "capacity")
    assert reject["retryAfterMs"] > 0


def test_a_task_that_no_handler_serves_is_rejected_as_unsupported() -> None:
    bench = Bench().ready()
    assert bench.task(model="other") is None
    assert bench.sent()[0]["reason"] == "unsupported"


def test_a_repeated_task_is_not_started_twice() -> None:
    bench = Bench(slots=2).ready()
    bench.start()
    assert bench.task() is None
    assert [m["type"] for m in bench.sent()] == ["taskAck"]


def test_the_heartbeat_lists_tasks_until_their_result_is_sent() -> None:
    bench = Bench(slots=2).ready()
    first, _ = bench.start("a"), bench.start("b")
    bench.finish(first)
    bench.session.heartbeat()
    beat = bench.sent()[0]
    assert beat["running"] == [{"taskId": "a", "attempt": 1}, {"taskId": "b", "attempt": 1}]
    bench.session.heartbeat()
    assert bench.sent()[0]["running"] == [{"taskId": "b", "attempt": 1}]


def test_cancel_stops_a_running_task_of_that_attempt() -> None:
    bench = Bench().ready()
    bench.start("t", attempt=2)
    effect = bench.receive(type="cancel", taskId="t", attempt=2, reason="client", graceMs=500)
    assert effect == protocol.Cancel("t", 2, "client", 500)


def test_cancel_of_an_unknown_task_is_answered() -> None:
    bench = Bench().ready()
    assert bench.receive(type="cancel", taskId="x", attempt=1, reason="timeout", graceMs=5) is None
    (answer,) = bench.sent()
    assert (answer["type"], answer["taskId"]) == ("taskResult", "x")
    assert answer["error"]


def test_cancel_of_an_answered_task_sends_the_kept_result_again() -> None:
    bench = Bench().ready()
    bench.finish(bench.start())
    first = bench.sent()[-1]
    bench.receive(type="cancel", taskId="t", attempt=1, reason="client", graceMs=5)
    assert bench.sent() == [first]


def test_an_acknowledged_result_is_forgotten() -> None:
    bench = Bench().ready()
    bench.finish(bench.start())
    assert len(bench.ledger) == 1
    bench.receive(type="resultAck", taskId="t", attempt=1, status="accepted")
    assert len(bench.ledger) == 0


def test_an_unacknowledged_result_is_sent_again_on_the_next_connection() -> None:
    old = Bench().ready()
    old.finish(old.start())
    result = old.sent()[-1]
    old.session.end()
    new = Bench(shared=old).ready()
    assert new.sent() == [result]


def test_a_result_whose_frame_was_never_sent_is_sent_on_the_next_connection() -> None:
    old = Bench().ready()
    old.finish(old.start())
    old.session.end()
    new = Bench(shared=old).ready()
    assert [m["type"] for m in new.sent()] == ["taskResult"]


def test_a_result_is_given_up_after_two_minutes() -> None:
    bench = Bench().ready()
    bench.finish(bench.start())
    bench.now = KEEP_S + 1
    assert bench.session.heartbeat() == [("t", 1)]
    assert len(bench.ledger) == 0


def test_a_task_of_a_lost_connection_can_no_longer_be_answered() -> None:
    bench = Bench().ready()
    start = bench.start()
    bench.session.end()
    assert not bench.finish(start)
    assert len(bench.ledger) == 0


def test_a_result_that_is_too_large_becomes_a_failure() -> None:
    bench = Bench().ready()
    bench.finish(bench.start(), b'"' + b"x" * 5000 + b'"')
    result = bench.sent()[-1]
    assert "5" in result["error"]
    assert result["errorInfo"]["code"] == "WORKER_ERROR"


def test_draining_asks_for_no_tasks_and_rejects_those_that_come() -> None:
    bench = Bench(slots=2).ready()
    bench.start("a")
    bench.session.drain(7000)
    assert bench.task("b") is None
    sent = bench.sent()
    assert sent[0] == {"type": "draining", "graceMs": 7000}
    assert [m["reason"] for m in sent if m["type"] == "taskReject"] == ["draining"]


def test_a_gateway_that_goes_gives_no_more_tasks_here() -> None:
    bench = Bench().ready()
    assert bench.receive(type="drain", graceMs=900, reconnect=True) == protocol.Drain(900, True)
    bench.task()
    assert bench.sent()[0]["reason"] == "draining"


def test_a_second_connection_offers_only_the_slots_that_are_free() -> None:
    old = Bench(slots=3).ready()
    start = old.start()
    new = Bench(shared=old)
    new.session.begin()
    assert new.sent()[0]["slots"] == 2
    new.welcome()
    old.finish(start)
    new.session.offer()
    assert [(m["type"], m["slots"]) for m in new.sent()] == [("register", 3)]


def test_a_message_that_cannot_be_read_is_a_complaint_and_changes_nothing() -> None:
    bench = Bench().ready()
    for frame in (b"{", b'{"type":"somethingNew"}', b'"text"'):
        assert isinstance(bench.session.receive(frame), protocol.Error)
    assert isinstance(bench.start(), Start)


def test_idle_means_nothing_running_unsent_or_unacknowledged() -> None:
    bench = Bench().ready()
    bench.sent()
    assert bench.idle()
    start = bench.start()
    assert not bench.idle()
    bench.finish(start)
    bench.sent()
    assert not bench.idle()
    bench.receive(type="resultAck", taskId="t", attempt=1, status="stale")
    assert bench.idle()
