"""Gateways whose keys lie in a database, on each kind."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.talk import Talk, talking


@pytest.fixture
def gateway(
    redis_url: str, database_url: str, tmp_path: Path
) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    """Makes a gateway with settings. All share a database and a Redis."""

    def make(**settings: Any) -> AbstractAsyncContextManager[Talk]:
        return talking(redis_url, tmp_path, **{"database_url": database_url, **settings})

    return make
