"""Fixtures: an S3-compatible server, and the files of a gateway that is none."""

from collections.abc import Iterator

import pytest
from tests.support.buckets import Buckets, running_buckets


@pytest.fixture(scope="session")
def a_server() -> Iterator[Buckets]:
    with running_buckets() as server:
        yield server


@pytest.fixture
def buckets(a_server: Buckets, monkeypatch: pytest.MonkeyPatch) -> Buckets:
    """A server whose keys this process knows."""
    for name, value in a_server.environ.items():
        monkeypatch.setenv(name, value)
    return a_server
