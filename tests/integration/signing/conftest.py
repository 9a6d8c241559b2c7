"""Gateways whose keys lie in a database, on each kind."""

from tests.integration.keys.conftest import gateway

__all__ = ["gateway"]
