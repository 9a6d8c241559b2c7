"""What the tests of refusals share."""

from collections.abc import Callable

import pytest

from fairlane.gateway.errors import ApiError


def refused(call: Callable[[], object]) -> ApiError:
    """The error that a call raises."""
    with pytest.raises(ApiError) as raised:
        call()
    return raised.value
