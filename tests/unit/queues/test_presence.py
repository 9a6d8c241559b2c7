"""What replicas tell each other of their workers: differences, in messages of bounded size."""

from typing import Any

from tests.contract.store.store import Store, World

from fairlane.queues.inspect.presence import MAX_PER_MESSAGE, Presence, PresenceUpdate, read_presence


def describe(worker_id: str) -> dict[str, Any] | None:
    return None if worker_id.startswith("gone") else {"workerId": worker_id}


def test_only_changes_are_published() -> None:
    presence = Presence()
    assert not presence
    presence.changed("a")
    presence.changed("b")
    presence.changed("gone before it was told")
    assert presence.next_update(describe) == (
        {"worker:a": '{"workerId":"a"}', "worker:b": '{"workerId":"b"}'},
        [],
        False,
    )
    assert not presence
    presence.changed("b")
    assert presence.next_update(lambda _: None) == ({}, ["worker:b"], False)
    assert presence.fields == 1


def test_a_message_is_bounded_and_the_rest_follows() -> None:
    presence = Presence()
    for number in range(MAX_PER_MESSAGE + 1):
        presence.changed(f"w{number}")
    assert len(presence.next_update(describe).fields) == MAX_PER_MESSAGE
    assert presence
    assert list(presence.next_update(describe).fields) == [f"worker:w{MAX_PER_MESSAGE}"]
    assert not presence


def test_everything_is_published_again_to_a_store_that_may_have_lost_data() -> None:
    presence = Presence()
    presence.changed("a")
    presence.changed("gone")
    presence.next_update(describe)
    presence.live({"a": (1, 2)}, {"a": 2})
    presence.forget(["a", "b"])
    assert presence
    news = presence.next_update(describe)
    assert (set(news.fields), news.gone, news.reset) == ({"worker:a", "worker:b"}, [], True)
    assert presence.fields == 2, "what moves is told with the next renewal"


def test_the_store_keeps_and_counts_what_was_published(world: World) -> None:
    pool = Store(world)

    def present(told: dict[str, str], gone: tuple[str, ...] = (), *, anew: bool = False) -> int:
        reply = pool.scheduler.update_presence(PresenceUpdate(told, list(gone), anew), 15_000).result()
        return pool.scheduler.parse_presence(reply)

    def rows() -> list[dict[str, Any]]:
        return read_presence(world.call("HGETALL", world.keys("presence", replica="r1")))

    assert present({"a": '{"workerId":"a"}', "b": '{"workerId":"b"}'}) == 2
    assert present(Presence().live({"a": (3, 40), "b": (0, 0)}, {"a": 30}).fields) == 3
    assert sorted(rows(), key=lambda row: row["workerId"]) == [
        {"workerId": "a", "running": 3, "heartbeatAgeMs": 40, "taskSilentMs": 30},
        {"workerId": "b", "running": 0, "heartbeatAgeMs": 0, "taskSilentMs": None},
    ]
    assert present({"c": '{"workerId":"c"}'}, ("a",)) == 3
    assert sorted(row["workerId"] for row in rows()) == ["b", "c"]
    assert 0 < world.call("PTTL", world.keys("presence", replica="r1")) <= 15_000
    assert present({"d": '{"workerId":"d"}'}, anew=True) == 1
    many = {f"w{number}": "{}" for number in range(MAX_PER_MESSAGE)}
    assert present(many, tuple(f"x{number}" for number in range(MAX_PER_MESSAGE))) == MAX_PER_MESSAGE + 1
    assert present({}) == MAX_PER_MESSAGE + 1
