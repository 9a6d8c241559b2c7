"""Workers that serve several models: their time goes to the models by how many users wait for each, and no model starves."""

import pytest
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.keys import ANY_MODEL
from fairlane.queues.tasks import Grant

Work = dict[str, tuple[int, int]]
"""model -> waiting users, ms that a task runs."""


class Shared:
    """Workers over a pool with backlogged models, and what each model got of their time."""

    def __init__(self, world: World, work: Work) -> None:
        self.world, self.work = world, work
        self.pool = Pool(world)
        self.pool.configure(max_length=100_000)
        self.pool.offer(*work, "m")
        self.number = 0
        self.served: dict[str, float] = {}

    def fill(self, model: str, each: int) -> None:
        """So many tasks of every user of a model."""
        users, _ = self.work[model]
        for n in range(each):
            for user in range(users):
                self.number += 1
                self.pool.submit(f"{model}-{n}-{user}-{self.number}", model, user=f"u{user}")

    def serve(
        self, number: int, models: tuple[str, ...] = (), running: Grant | None = None
    ) -> dict[str, float]:
        """One worker carries out so many tasks; returns the share of its time of each model."""
        time = dict.fromkeys(self.work, 0.0)
        serves = models or tuple(self.work)
        grants = [running] if running else self.pool.take(*serves)
        for _ in range(number):
            assert grants, "something waits"
            (grant,) = grants
            ms = self.work[grant.model][1]
            time[grant.model] += ms
            self.world.advance(ms)
            if self.world.now_ms % 10_000 < ms:
                self.pool.offer(*self.work)
            grants = self.pool.finish(grant, want=1, models=serves).grants
        if grants:
            self.pool.requeue(grants[0], "declined")
        total = sum(time.values())
        return {model: ms / total for model, ms in time.items()}


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize(
    ("work", "shares"),
    [
        ({"a": (1, 100), "b": (1, 100)}, {"a": 1 / 2, "b": 1 / 2}),
        ({"a": (3, 100), "b": (1, 100)}, {"a": 3 / 4, "b": 1 / 4}),
        ({"a": (1, 400), "b": (1, 100)}, {"a": 1 / 2, "b": 1 / 2}),
        ({"a": (1, 400), "b": (4, 100)}, {"a": 1 / 5, "b": 4 / 5}),
        ({"a": (2, 100), "b": (1, 300), "c": (1, 50)}, {"a": 1 / 2, "b": 1 / 4, "c": 1 / 4}),
    ],
)
def test_time_goes_to_models_by_their_waiting_users(
    world: World, work: Work, shares: dict[str, float], wild: bool
) -> None:
    shared = Shared(world, work)
    if wild:
        shared.pool.offer(ANY_MODEL)
    for model, (users, _) in work.items():
        shared.fill(model, 240 // users)
    serves = (ANY_MODEL,) if wild else ()
    shared.serve(30, serves)
    got = shared.serve(200, serves)
    for model, share in shares.items():
        assert got[model] == pytest.approx(share, abs=0.06)


def test_a_model_that_was_idle_is_neither_punished_nor_favoured(world: World) -> None:
    shared = Shared(world, {"a": (1, 100), "b": (1, 100)})
    shared.fill("a", 300)
    shared.serve(100)
    shared.fill("b", 100)
    assert shared.serve(60)["b"] == pytest.approx(1 / 2, abs=0.05)


BLOCKED = {
    "paused": ({"paused": True}, {"paused": None}),
    "paced": ({"requests_per_minute": 1}, {"requests_per_minute": None}),
    "at its limit": ({"concurrency": 1}, {"concurrency": None}),
}


@pytest.mark.parametrize("why", BLOCKED)
def test_a_model_that_could_not_start_saves_no_turns(world: World, why: str) -> None:
    shared = Shared(world, {"a": (1, 100), "b": (1, 100)})
    shared.fill("a", 300)
    shared.fill("b", 300)
    shared.serve(10)
    block, release = BLOCKED[why]
    shared.pool.set_model("b", **block)  # type: ignore[arg-type]
    held = shared.pool.take("b")
    assert shared.serve(80)["a"] > 0.95
    for grant in held:
        shared.pool.requeue(grant, "declined")
    shared.pool.set_model("b", **release)  # type: ignore[arg-type]
    assert shared.serve(60)["b"] == pytest.approx(1 / 2, abs=0.1)


def test_a_model_without_workers_lets_no_other_jump_the_line(world: World) -> None:
    """Tasks wait for a worker that is away; two other models share one, and one of them comes and goes."""
    shared = Shared(world, {"a": (1, 100), "b": (1, 100), "away": (1, 100)})
    shared.fill("away", 1)
    shared.fill("a", 300)
    both = ("a", "b")
    shared.serve(100, both)
    got = 0.0
    for _ in range(6):
        shared.fill("b", 12)
        got += shared.serve(20, both)["b"] / 6
        while shared.pool.take("b"):
            pass
    assert 0.4 <= got <= 0.6


def test_a_model_with_workers_of_its_own_takes_no_more_than_its_share_of_others(world: World) -> None:
    """`b` also runs elsewhere, slowly: where it is shared with `a`, one that comes back gets its share, no more."""
    shared = Shared(world, {"a": (1, 100), "b": (1, 100), "slow": (1, 100)})
    shared.fill("slow", 20)
    shared.serve(2, ("slow",))
    shared.fill("a", 300)
    shared.serve(100, ("a", "b"))
    shared.fill("b", 100)
    assert shared.serve(60, ("a", "b"))["b"] == pytest.approx(1 / 2, abs=0.05)


def test_time_from_other_workers_does_not_count_against_a_model_for_ever(world: World) -> None:
    """`b` had an hour of workers shared with `c`; where `a` is, it waits for ten minutes of work at most."""
    shared = Shared(world, {"a": (1, 10_000), "b": (1, 10_000), "c": (1, 10_000)})
    shared.fill("a", 300)
    shared.serve(10, ("a", "b"))
    shared.fill("b", 600)
    shared.serve(360, ("b", "c"))
    assert shared.serve(62, ("a", "b"))["b"] < 0.05
    assert shared.serve(60, ("a", "b"))["b"] == pytest.approx(1 / 2, abs=0.1)
