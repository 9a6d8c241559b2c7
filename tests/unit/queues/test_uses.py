"""Tasks of signed tokens whose uses are limited: each accepted one is a use, and nothing else is."""

import itertools

from tests.support.audit import Snapshot, audit
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.limits import pack
from fairlane.queues.tasks import Rejection, Submitted


def refused(answer: Submitted | Rejection) -> tuple[str, int]:
    assert isinstance(answer, Rejection), answer
    return answer.reason, answer.limit


def test_so_many_tasks_are_accepted_over_all_replicas_and_another_name_has_its_own(world: World) -> None:
    pools = [Pool(world), Pool(world, "r2", set_up=False)]
    tasks = [f"t{number}" for number in range(10)]
    answers = [
        pool.submit(task, uses="3 60000 site/a b")
        for pool, task in zip(itertools.cycle(pools), tasks, strict=False)
    ]
    accepted = [task for task, answer in zip(tasks, answers, strict=True) if isinstance(answer, Submitted)]
    assert accepted == tasks[:3]
    assert {refused(answer) for answer in answers[3:]} == {("used_up", 3)}
    assert isinstance(pools[0].submit("other", uses="3 60000 site/b"), Submitted)
    assert refused(pools[0].submit("more", uses="2 60000 site/a b")) == ("used_up", 2), (
        "a token of fewer uses"
    )
    audit(world, [*accepted, "other"])


def test_a_submit_that_is_repeated_is_one_use(world: World) -> None:
    pool = Pool(world)
    for _ in range(3):
        assert isinstance(pool.submit("t", nonce="n", uses="1 60000 site/a"), Submitted)
    assert refused(pool.submit("other", uses="1 60000 site/a")) == ("used_up", 1)


def test_a_rejection_counts_as_no_use(world: World) -> None:
    pool = Pool(world)
    uses = {"uses": "1 60000 site/a"}
    pool.configure(max_length=1)
    assert isinstance(pool.submit("first"), Submitted)
    assert refused(pool.submit("t", **uses))[0] == "full"
    assert refused(pool.submit("t", "unknown", **uses))[0] == "no_worker"
    pool.configure(max_length=9)
    limits = pack({"requests_per_day": 1})
    assert isinstance(pool.submit("second", user="k/a", queue="paid", key_limits=limits), Submitted)
    assert refused(pool.submit("t", user="k/a", queue="paid", key_limits=limits, **uses))[0] == "rate_limited"
    assert not Snapshot(world).by_kind["uses"]
    assert isinstance(pool.submit("t", **uses), Submitted)
    assert refused(pool.submit("u", **uses)) == ("used_up", 1)
    audit(world, ["first", "second", "t"])


def test_a_rejected_use_takes_nothing_of_a_limit(world: World) -> None:
    pool, limits = Pool(world), pack({"requests_per_day": 2})
    ask = {"user": "k/a", "key_limits": limits}
    assert isinstance(pool.submit("t", uses="1 60000 k/a", **ask), Submitted)  # type: ignore[arg-type]
    for number in range(5):
        assert refused(pool.submit(f"u{number}", uses="1 60000 k/a", **ask)) == ("used_up", 1)  # type: ignore[arg-type]
    assert isinstance(pool.submit("v", **ask), Submitted)  # type: ignore[arg-type]
    audit(world, ["t", "v"])


def test_uses_are_remembered_until_the_last_token_of_their_name_ends(world: World) -> None:
    pool = Pool(world)
    ttl = lambda: Snapshot(world).ttl("uses", "site/a")  # noqa: E731
    pool.submit("t", uses="9 60000 site/a")
    assert 0 < ttl() <= 60_000
    pool.submit("u", uses="9 90000 site/a")
    assert 60_000 < ttl() <= 90_000
    pool.submit("v", uses="9 1000 site/a")
    assert ttl() > 60_000
    assert Snapshot(world).one("uses", "site/a") == b"3"
