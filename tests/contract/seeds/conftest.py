"""The acceptance criteria of the seeds run on gateways in this process: some shorten times, or stop the gateway's Redis."""

import pytest
from tests.integration.conftest import gateway, shared_gateway, shared_redis, sharing

__all__ = ["gateway", "shared_gateway", "shared_redis", "sharing"]


@pytest.fixture
def calm() -> None:
    """Each gateway ends with its test."""
