"""Who of the replicas is gone, as the others tell it."""

from typing import Any

from structlog.testing import capture_logs

from fairlane.gateway.replicas import LEFT, MissingReplicas, Replicas
from fairlane.queues.keys import Keys
from fairlane.queues.survey import ReplicaInfo

NOW = 1_000_000
LATER = NOW + 10_000


def replicas(*told: str) -> Replicas:
    """One that knows where `told` run."""
    link: Any = None
    replicas = Replicas(link, Keys("p"), "me", ReplicaInfo("here", 1, "1.0", 0))
    replicas._seen = {name: ReplicaInfo("there", 2, "1.0", 0) for name in told}
    return replicas


def lines(watch: Replicas, *looks: dict[str, float]) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        for ends in looks:
            watch.note({"me": LATER, **ends}, NOW)
    return [(line["log_level"], line["gone"]) for line in logs]


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


def test_one_of_an_older_release_that_told_nothing_of_itself_is_no_alarm() -> None:
    """It does not say that it leaves: each one that an upgrade replaces would be told as dead."""
    dead = {"other": NOW - 1.0}
    assert lines(replicas(), {"other": LATER}, dead, dead, dead) == [("info", "other")]


def test_those_that_were_gone_before_are_not_told() -> None:
    assert lines(replicas(), {"old": NOW - 1.0}, {"old": NOW - 1.0}, {"old": NOW - 1.0}) == []
