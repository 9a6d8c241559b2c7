"""Who of the replicas is gone, as the others tell it."""

from typing import Any

from structlog.testing import capture_logs

from fairlane.gateway.watch.replicas import LEFT, MissingReplicas, Replicas
from fairlane.queues.keys import Keys
from fairlane.queues.survey.survey import ReplicaInfo

NOW = 1_000_000
LATER = NOW + 10_000


def replicas(*told: str) -> Replicas:
    """One that knows where `told` run."""
    link: Any = None
    replicas = Replicas(link, Keys("p"), "me", lambda: ReplicaInfo("here", 1, "1.0", 0))
    replicas._seen = {name: ReplicaInfo("there", 2, "1.0", 0) for name in told}
    return replicas


def told(watch: Replicas, *looks: dict[str, float], born: bytes = b"1") -> list[dict[str, Any]]:
    with capture_logs() as logs:
        for ends in looks:
            watch.note(ends, NOW, born)
    return list(logs)


def lines(watch: Replicas, *looks: dict[str, float]) -> list[tuple[str, str]]:
    return [(line["log_level"], line["gone"]) for line in told(watch, *looks)]


def test_one_that_is_missing_twice_is_gone_once() -> None:
    replicas = MissingReplicas()
    assert replicas.look({"a", "b"}) == []
    assert replicas.look({"a"}) == []
    assert replicas.look({"a"}) == ["b"]
    assert replicas.look({"a"}) == []
    assert replicas.look({"a", "b"}) == []


def test_who_is_back_at_the_next_look_was_never_gone() -> None:
    replicas = MissingReplicas()
    for alive in ({"a"}, set[str](), {"a"}, set[str](), {"a"}):
        assert replicas.look(alive) == []


def test_a_death_is_told_from_a_departure() -> None:
    dead = {"other": NOW - 1.0}
    assert lines(replicas("other"), {"other": LATER}, dead, dead, dead) == [("warning", "other")]
    assert lines(replicas(), {"other": LATER}, {"other": LEFT}, {"other": LEFT}) == [("info", "other")]
    assert lines(replicas(), {"other": LATER}, {}, {}) == [("info", "other")], "the sweep was faster"


def test_where_it_ran_is_told_of_one_that_the_sweep_forgot_between_two_looks() -> None:
    [line] = told(replicas("other"), {"other": LATER}, {}, {})
    assert (line["host"], line["pid"], line["version"]) == ("there", 2, "1.0")
    watch = replicas("other")
    assert told(watch, {}, {}) == []
    assert not watch._seen, "nothing is kept of those that never counted as alive"


def test_nobody_has_left_because_redis_was_emptied() -> None:
    """Each replica needs up to five seconds to say again that it is there, or to connect again."""
    watch = replicas()
    assert told(watch, {"other": LATER}, {"other": LATER}) == []
    assert told(watch, {"me": LATER}, {"me": LATER}, {"me": LATER}, born=b"2") == []
    assert told(watch, {"other": LATER}, born=b"2") == []
    assert len(told(watch, {}, {}, born=b"2")) == 1


def test_those_that_were_gone_before_are_not_told() -> None:
    assert lines(replicas(), {"old": NOW - 1.0}, {"old": NOW - 1.0}, {"old": NOW - 1.0}) == []
