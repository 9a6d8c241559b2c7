"""Garbage collection of a gateway."""

import gc


def settle_memory() -> None:
    """Exclude the objects of the start from garbage collection, and collect rarely: tasks leave few cycles, and each collection
    delays all streams."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
