"""What the log says of a database that answers now and then."""

from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.support.serving import until

from fairlane.gateway.accounts import keyring as module
from fairlane.gateway.accounts.keyring import Keyring
from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.database import outage
from fairlane.gateway.database.errors import DatabaseUnavailable

pytestmark = pytest.mark.anyio


class EverySecond:
    """A store that answers each second time it is asked, until it is `well`."""

    answers = True

    def __init__(self) -> None:
        self.asked = 0
        self.well = False

    async def version(self) -> int:
        self.asked += 1
        if self.asked % 2 and not self.well:
            raise DatabaseUnavailable("too many clients")
        return 1

    async def changed_since(self, version: int) -> tuple[int, list[Any]]:
        return 1, []


async def test_it_is_told_once_to_be_away_and_to_be_back_when_it_answers_steadily(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(outage, "STEADY_S", 1000.0)
    store = EverySecond()
    keyring = Keyring(cast(KeyStore, store), lambda keys, cut: None, set)
    with capture_logs() as lines:
        await keyring.start()
        await until(lambda: store.asked >= 20)
        store.well = True
        monkeypatch.setattr(outage, "STEADY_S", 0.0)
        await until(lambda: lines[-1]["event"] == "the database is back")
    await keyring.close()
    assert [line["event"].partition(":")[0] for line in lines] == [
        "the database is away",
        "the database is back",
    ]
