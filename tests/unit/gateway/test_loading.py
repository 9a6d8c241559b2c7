"""What is imported inside the block is left out of garbage collection, which works after it as it did before."""

import gc

import pytest

from fairlane.gateway.process.loading import loading


@pytest.mark.parametrize("works", [True, False])
def test_the_collector_rests_inside_and_works_as_before_behind(works: bool) -> None:
    before = gc.get_freeze_count()
    if not works:
        gc.disable()
    try:
        with loading():
            assert not gc.isenabled()
            kept = [{"a": [number]} for number in range(1000)]
        assert gc.isenabled() is works
        assert gc.get_freeze_count() > before + len(kept)
    finally:
        gc.enable()
