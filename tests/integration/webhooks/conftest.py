"""Certificates, as the worker's tests have them."""

from tests.integration.http_worker.conftest import certificates

__all__ = ["certificates"]
