"""Bodies kept beside Redis: bounded in bytes and in time."""

from fairlane.workers.server.payloads import KEPT_S, PayloadCache


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_body_is_there_once() -> None:
    cache = PayloadCache(1000, Clock())
    cache.put("a", b"body")
    assert (cache.pop("a"), cache.pop("a")) == (b"body", None)


def test_the_oldest_make_room_and_large_ones_are_not_kept() -> None:
    cache = PayloadCache(1000, Clock())
    for name in "abcde":
        cache.put(name, name.encode() * 250)
    cache.put("large", b"x" * 251)
    assert [name for name in ("a", "b", "c", "d", "e", "large") if cache.pop(name)] == ["b", "c", "d", "e"]
    cache.put("f", b"x" * 250)
    assert cache.pop("f"), "what was taken out counts no more"


def test_bodies_of_tasks_that_wait_for_long_or_end_before_they_begin_are_let_go() -> None:
    clock = Clock()
    cache = PayloadCache(1000, clock)
    cache.put("a", b"first")
    cache.put("b", b"second")
    clock.now = KEPT_S / 2
    cache.put("b", b"again")
    clock.now = KEPT_S
    cache.expire()
    assert cache.pop("a") is None
    assert cache.pop("b") == b"again"
    cache.expire()
