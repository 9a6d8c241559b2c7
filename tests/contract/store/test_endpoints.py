"""Lines of endpoints: workers of every model are never asked, nothing starts without limits, and one try is one try."""

import pytest
from tests.contract.store.store import ANY_MODEL, Store

pytestmark = pytest.mark.feature("endpoints")

IMAGE = "http:image"


@pytest.fixture
def line(bare: Store) -> Store:
    """The endpoint is configured, and offered by this replica's workers."""
    bare.apply(models={IMAGE: {"cost": "requests"}})
    bare.offer(IMAGE)
    return bare


def test_workers_of_every_model_are_neither_counted_nor_given_anything_nor_woken(bare: Store) -> None:
    bare.apply(models={IMAGE: {"cost": "requests"}})
    bare.offer(ANY_MODEL)
    assert bare.reject("a", IMAGE, want=1, waiting=True).reason == "no_worker"
    assert bare.accept("d", IMAGE).state == "queued", (
        "nobody waits for its answer, and its worker may come back"
    )
    other = bare.replica("r2")
    other.offer(IMAGE)
    assert bare.taken(ANY_MODEL) == []  # idle for every model from now on
    bare.heard()
    other.accept("b", IMAGE)
    other.accept("c", "m")
    assert bare.taken(ANY_MODEL, want=5) == ["c"]
    assert [message for message in bare.heard() if IMAGE in message] == []
    assert sorted(other.taken(IMAGE, want=5)) == ["b", "d"]


def test_nothing_starts_without_the_limits_of_an_endpoint(line: Store) -> None:
    for task_id in ("a", "b"):
        line.submit(task_id, IMAGE)
    line.apply()  # it was removed, and this replica has not heard of it
    assert line.taken(IMAGE) == []
    assert line.accept("c", IMAGE, want=1).state == "queued"
    line.apply(models={IMAGE: {"concurrency": 1, "cost": "requests"}})
    assert line.taken(IMAGE, want=5) == ["a"]


def test_a_replica_that_dies_with_a_task_of_one_try_ends_it(line: Store) -> None:
    line.run("a", IMAGE, max_tries=1)
    line.pass_time(20_000)
    assert line.end("a") == ("failed", "WORKER_LOST")
