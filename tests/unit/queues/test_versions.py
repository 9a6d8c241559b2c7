"""A configuration is known by a hash of what it sets."""

from fairlane.queues.versions import hash_of


def test_the_hash_names_the_settings_in_any_order() -> None:
    assert hash_of(["a", 1, "b", 2]) == hash_of(["b", 2, "a", 1])
    assert len({hash_of([]), hash_of(["a", 1]), hash_of(["a", 2]), hash_of(["b", 1])}) == 4
