"""Which features a test disables."""

from collections.abc import Iterable

from fairlane.gateway.features import FEATURES


def with_dependents(names: Iterable[str]) -> frozenset[str]:
    """Return these features with those that require them."""
    found = set(names)
    while more := {one.name for one in FEATURES if found & {*one.requires}} - found:
        found |= more
    return frozenset(found)
