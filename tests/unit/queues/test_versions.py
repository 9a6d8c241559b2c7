"""A configuration is known by a hash of what it sets."""

from fairlane.queues.versions import hash_of


def test_the_hash_names_the_settings_in_any_order() -> None:
    assert hash_of({"m:a": {"x": 1, "y": 2}, "q:b": {}}) == hash_of({"q:b": {}, "m:a": {"y": 2, "x": 1}})
    assert len({hash_of(one) for one in ({}, {"a": {"x": 1}}, {"a": {"x": 2}}, {"b": {"x": 1}})}) == 4
