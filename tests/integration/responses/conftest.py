"""What these tests share: a caller with the key of `acme` at the gateway of a test."""

from collections.abc import AsyncIterator

import pytest
from tests.integration.native.keys import secret
from tests.support.talk import Talk

from .asking import Asker


@pytest.fixture
async def acme(talk: Talk) -> AsyncIterator[Asker]:
    async with talk.client(secret("acme")) as http:
        yield Asker(http, talk)
