"""Lines of endpoints: workers of every model are never asked, nothing starts without limits, and one try is one try."""

import contextlib
from typing import Any

import pytest
from tests.contract.store.store import World, drive
from tests.support.audit import audit
from tests.support.pool import Pool
from tests.support.servers import Server

from fairlane.queues.keys import ANY_ENDPOINT, ANY_MODEL, is_reserved
from fairlane.queues.tasks import Rejection, State, Submitted
from fairlane.queues.versions import Version

IMAGE = "http:image"


def pool_of(world: World, replica: str = "r1", *offered: str, limit: int = 0) -> Pool:
    """A replica with workers of these models; the endpoint is configured."""
    pool = Pool(world, replica, set_up=False)
    drive(pool.scheduler.configure({}, {IMAGE: {"concurrency": limit or None, "cost": "requests"}}))
    for model in offered:
        pool.offer(model)
    return pool


def test_what_is_an_endpoints() -> None:
    assert is_reserved(IMAGE)
    assert is_reserved(ANY_ENDPOINT)
    assert not is_reserved("https")
    assert not is_reserved(ANY_MODEL)


def test_workers_of_every_model_are_neither_counted_nor_given_anything_nor_woken(
    world: World, any_server: Server
) -> None:
    pool = pool_of(world, "r1", ANY_MODEL)
    answer = pool.submit("a", IMAGE, want=1, waiting=True)
    assert isinstance(answer, Rejection)
    assert answer.reason == "no_worker"
    answer = pool.submit("d", IMAGE, want=1)  # nobody waits for its answer, and its worker may come back
    assert isinstance(answer, Submitted)
    assert answer.state is State.QUEUED
    other = Pool(world, "r2", set_up=False)
    other.offer(IMAGE)
    assert pool.taken(ANY_MODEL) == []  # idle for every model from now on
    ears = pool.ears(any_server.socket_path)
    assert isinstance(other.submit("b", IMAGE), Submitted)
    assert isinstance(other.submit("c", "m"), Submitted)
    assert pool.taken(ANY_MODEL, want=5) == ["c"]
    with contextlib.closing(ears):
        assert [message for message in ears.drain() if IMAGE.encode() in message] == []
    assert sorted(other.taken(IMAGE, want=5)) == ["b", "d"]
    audit(world, ("b", "c", "d"))


def test_nothing_starts_without_the_limits_of_an_endpoint(world: World) -> None:
    pool = pool_of(world, "r1", IMAGE)
    for task_id in ("a", "b"):
        pool.submit(task_id, IMAGE)
    drive(
        pool.scheduler.configure({}, {}, Version(2, 2))
    )  # it was removed, and this replica has not heard of it
    assert pool.taken(IMAGE) == []
    answer = pool.submit("c", IMAGE, want=1)
    assert isinstance(answer, Submitted)
    assert answer.state is State.QUEUED
    drive(pool.scheduler.configure({}, {IMAGE: {"concurrency": 1, "cost": "requests"}}, Version(3, 3)))
    assert pool.taken(IMAGE, want=5) == ["a"]
    audit(world, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("tries", "cause", "begun", "state"),
    [
        (1, "lost", True, "failed"),
        (1, "lost", False, "failed"),  # a renewal may have been lost with its replica
        (1, "failed", True, "failed"),
        (1, "declined", False, "queued"),
        (2, "failed", True, "queued"),
        (2, "lost", False, "queued"),
        (0, "lost", True, "queued"),
    ],
)
def test_a_task_of_one_try_is_never_begun_twice(
    world: World, tries: int, cause: Any, begun: bool, state: str
) -> None:
    pool = pool_of(world, "r1", IMAGE)
    grant = pool.run("a", IMAGE, max_tries=tries)
    assert grant.max_tries == tries
    pool.requeue(grant, cause, begun=begun)
    assert pool.state("a") == state
    audit(world, ("a",))


def test_a_task_has_as_many_tries_as_are_said(world: World) -> None:
    pool = pool_of(world, "r1", IMAGE)
    pool.submit("a", IMAGE, max_tries=5)
    for number in range(5):
        (grant,) = pool.take(IMAGE)
        pool.requeue(grant, "failed", begun=True)
        assert pool.state("a") == ("failed" if number == 4 else "queued")


def test_a_replica_that_dies_with_a_task_of_one_try_ends_it(world: World) -> None:
    pool = pool_of(world, "r1", IMAGE)
    pool.run("a", IMAGE, max_tries=1)
    pool.pass_time(20_000)
    assert (pool.state("a"), pool.code("a")) == ("failed", "WORKER_LOST")
    audit(world, ("a",))
