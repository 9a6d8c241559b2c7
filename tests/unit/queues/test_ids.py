import uuid

import pytest

from fairlane.queues.ids import could_be_ours, in_pool, new_task_id, pool_of

NOW = 1_800_000_000_000
DAY = 24 * 3600 * 1000


def test_id_is_a_version_8_uuid_in_canonical_text() -> None:
    parsed = uuid.UUID(new_task_id(NOW))
    assert str(parsed) == new_task_id(NOW)[:13] + str(parsed)[13:]
    assert parsed.version == 8
    assert parsed.variant == uuid.RFC_4122


def test_id_carries_its_time_in_the_first_48_bits() -> None:
    assert uuid.UUID(new_task_id(NOW)).int >> 80 == NOW


@pytest.mark.parametrize("pool", [0, 1, 7, 128, 255])
def test_pool_survives_the_round_trip_whatever_the_random_bits_are(pool: int) -> None:
    for byte in (b"\x00", b"\xff", b"\x5a"):
        task_id = in_pool(new_task_id(NOW, byte.__mul__), pool)
        assert pool_of(task_id) == pool
        assert uuid.UUID(task_id).version == 8


def test_sixty_six_bits_vary() -> None:
    zeros = uuid.UUID(new_task_id(NOW, lambda n: b"\x00" * n)).int
    ones = uuid.UUID(new_task_id(NOW, lambda n: b"\xff" * n)).int
    assert (zeros ^ ones).bit_count() == 66


def test_ids_of_the_same_millisecond_differ() -> None:
    assert len({new_task_id(NOW) for _ in range(10_000)}) == 10_000


def test_ids_sort_by_time() -> None:
    ids = [new_task_id(NOW + step) for step in range(100)]
    assert sorted(ids) == ids


def test_own_id_could_be_ours_also_when_the_issuer_was_ahead_or_the_task_is_old() -> None:
    assert could_be_ours(new_task_id(NOW), NOW)
    assert could_be_ours(new_task_id(NOW + DAY), NOW)
    assert could_be_ours(new_task_id(NOW - 300 * DAY), NOW)


FOREIGN = [
    "",
    "x",
    "00000000-0000-0000-0000-000000000000",
    str(uuid.uuid4()),
    new_task_id(NOW).upper(),
    new_task_id(NOW) + "\n",
    new_task_id(NOW).replace("-", ""),
    new_task_id(NOW + 2 * DAY),
    new_task_id(1_600_000_000_000),
]


@pytest.mark.parametrize("text", FOREIGN, ids=range(len(FOREIGN)))
def test_foreign_text_could_not_be_ours(text: str) -> None:
    assert not could_be_ours(text, NOW)
