"""Which tasks of a lost worker are suspects."""

import pytest

from fairlane.workers.server.pool.suspects import (
    MARGIN_S,
    Candidate,
    Loss,
    Suspicion,
    read_suspicion,
    suspects,
)


def one(name: str, sent_at: float, *, acknowledged: bool = True, size: int = 10) -> Candidate:
    return Candidate((name, 1), sent_at, acknowledged, size)


OLD, A, B, C, D = one("old", 80), one("a", 91), one("b", 95), one("c", 97), one("d", 99)
UNREAD, LATER = one("unread", 97, acknowledged=False), one("later", 98, acknowledged=False, size=99)


@pytest.mark.parametrize(
    ("candidates", "code", "by_worker", "found"),
    [
        ([OLD, A], 1006, False, "a lost"),
        ([A, B, C, D], 1006, False, "b lost, c lost, d lost"),
        ([UNREAD, B, C, D, LATER], 1006, False, "unread lost, c lost, d lost, later lost"),
        ([A, B], 1011, True, "a lost, b lost"),
        ([A], 1000, True, "a closed"),
        ([A, UNREAD, LATER], 1011, True, "a lost, unread closed, later lost"),
        ([A, UNREAD, LATER], 1009, True, "a lost, unread lost, later closed"),
        ([A], 1001, True, ""),
        ([A], 1012, False, ""),
        ([OLD], 1006, False, ""),
    ],
)
def test_the_newest_tasks_of_a_lost_worker_are_suspects_and_the_first_unread_one_closed_it(
    candidates: list[Candidate], code: int, by_worker: bool, found: str
) -> None:
    suspected = suspects(candidates, "key/w", Loss(code, "why", by_worker, 100))
    of_sdk = suspects(candidates, "key/w", Loss(code, "why", by_worker, 100, process_known=True))
    assert {one.isolates("key/w") for one in of_sdk.values()} <= {code != 1006}
    assert all(one.isolates("key/other") for one in of_sdk.values())
    said = {f"{name} {suspicion.kind}" for (name, _), suspicion in suspected.items()}
    assert said == set(found.split(", ") if found else [])


def test_a_suspicion_survives_its_record() -> None:
    (suspicion,) = suspects([C], "key/a b", Loss(1009, "too\tlarge", True, 100)).values()
    assert suspicion == Suspicion("closed", 3000, "key/a b", "1009 too large")
    assert read_suspicion(suspicion.packed()) == suspicion
    assert suspicion.alone_s == 3 + MARGIN_S
    assert (suspicion.excludes("key/a b"), suspicion.excludes("key/other")) == (True, False)
    assert read_suspicion("") is None
