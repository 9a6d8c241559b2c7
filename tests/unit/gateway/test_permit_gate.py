"""Permits: valid signatures, and how the gate asks the store."""

import asyncio
import json
from typing import Any, cast

import pytest

from fairlane.gateway.core.links import Tickets
from fairlane.gateway.endpoints.endpoints import Endpoint
from fairlane.gateway.permits.gate import Gate, PermitRejected
from fairlane.gateway.permits.signed import Receipt, Signer
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.ids import new_task_id
from fairlane.queues.metrics import PERMIT_CHECKS, Recorder
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Admitted, PermitEnd, RetryAt
from fairlane.workers.adapters.targets import Pattern
from fairlane.workers.server.background import Background

pytestmark = pytest.mark.anyio

SECRET = b"a secret of the tests"
EPOCH = 1_790_000_000_000_000
TASK = new_task_id(1_790_000_000_000)
IMAGE = Endpoint("image", Pattern.read("https://image.example/*"))


class Store:
    """Counts what is asked of it, and answers as the store would of one permit."""

    def __init__(self) -> None:
        self.metrics = Recorder()
        self.asked: list[str] = []
        self.nonces: set[str] = set()
        self.used = False
        self.away = 0

    def nonce(self) -> str:
        return f"n{len(self.asked)}"

    def of_task(self, _: str) -> "Store":
        return self

    async def call(self, script: str, ask: dict[str, Any]) -> dict[str, Any]:
        if script == "release_permit":
            self.asked.append("leave")
            return {"outcome": PermitEnd.ENDED}
        self.asked.append("admit")
        self.nonces.add(ask["nonce"])
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away", sent=True)
        outcome, self.used = (Admitted.USED if self.used else Admitted.IN), True
        return {"outcome": outcome, "epoch": EPOCH, "later": [{"model": "http:image", "ms": 5}]}


class Knock:
    """A gate, and somebody before it."""

    def __init__(self) -> None:
        self.store, self.later = Store(), list[RetryAt]()
        self.signer = Signer(Tickets(SECRET).mac)
        self.gate = Gate(cast(Scheduler, self.store), Background(), self.signer, self.later.append)
        self.permit = self.signer.permit(TASK, "image")

    async def refused(
        self, permit: str | None = None, task_id: str | None = None, endpoint: str = "image"
    ) -> PermitRejected:
        with pytest.raises(PermitRejected) as refusal:
            await self.gate.admit(endpoint, permit, task_id)
        return refusal.value


@pytest.fixture
async def knock() -> Knock:
    return Knock()


# ---- what is genuine ----------


async def test_what_is_signed_is_read_back_and_nothing_else_is() -> None:
    signer = Signer(Tickets(SECRET).mac)
    permit, receipt = signer.permit(TASK, "image"), signer.receipt(TASK, 17)
    assert signer.read_permit(permit, "image") == TASK
    assert signer.read_receipt(receipt) == Receipt(TASK, 17)
    assert (
        signer.read_permit(permit, "imag")
        is signer.read_permit(receipt, "image")
        is signer.read_receipt(permit)
        is None
    )
    assert Signer(Tickets(SECRET + b"!").mac).read_permit(permit, "image") is None
    assert signer.read_receipt(signer.permit(TASK, "")) is None, (
        "one is not the other, whatever the endpoint is called"
    )


async def test_no_other_text_is_a_permit() -> None:
    signer = Signer(Tickets(SECRET).mac)
    permit = signer.permit(TASK, "image")
    for at, letter in enumerate(permit):
        other = permit[:at] + ("a" if letter != "a" else "b") + permit[at + 1 :]
        assert signer.read_permit(other, "image") is None, at
    for text in (
        "",
        ".",
        permit + "=",
        permit.upper(),
        permit + "\n",
        " " + permit,
        "é" * 69,
        "-" * 36 + "." + "_" * 32,
    ):
        assert signer.read_permit(text, "image") is None, text


# ---- who has one ----------


async def test_of_many_repetitions_one_is_admitted(knock: Knock) -> None:
    answers = await asyncio.gather(
        *(knock.gate.admit("image", knock.permit, None) for _ in range(500)), return_exceptions=True
    )
    assert [one for one in answers if not isinstance(one, PermitRejected)] == [
        (TASK, knock.signer.receipt(TASK, EPOCH))
    ]
    assert {one.code for one in answers if isinstance(one, PermitRejected)} == {"PERMIT_USED"}
    counted = knock.store.metrics.values[PERMIT_CHECKS.name]
    assert {outcome: counted[outcome,] for outcome in ("allowed", "used")} == {"allowed": 1, "used": 499}


async def test_a_store_that_does_not_answer_is_asked_again_by_the_same_call(knock: Knock) -> None:
    knock.store.away = 2
    assert await knock.gate.admit("image", knock.permit, TASK)
    assert (len(knock.store.nonces), knock.store.asked.count("admit")) == (1, 3)


async def test_and_for_so_long_and_no_longer(knock: Knock) -> None:
    knock.store.away = 99
    with pytest.raises(StoreUnavailable):
        await knock.gate.admit("image", knock.permit, None)
    assert 2 <= knock.store.asked.count("admit") <= 8


async def test_who_leaves_does_not_stop_the_question(knock: Knock) -> None:
    asking = asyncio.create_task(knock.gate.admit("image", knock.permit, None))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await knock.refused(knock.permit)).code == "PERMIT_USED"


async def test_forgeries_cost_the_store_nothing(knock: Knock) -> None:
    for text in (knock.permit[:-1] + "!", knock.permit[:-1], "x" * 100_000, knock.signer.receipt(TASK, 17)):
        assert (await knock.refused(text)).code == "PERMIT_NEEDED"
        assert await knock.gate.leave(text if "." not in text else knock.permit) is None
    assert (await knock.refused(knock.permit, new_task_id(1))).code == "PERMIT_NEEDED"
    assert (await knock.refused(knock.permit, endpoint="other")).code == "PERMIT_NEEDED"
    assert knock.store.asked == []


# ---- what waits in the store ----------


async def test_a_permit_waits_with_its_task_for_its_turn(knock: Knock) -> None:
    permit = knock.gate.permit(TASK, IMAGE, "https://image.example/cat")
    assert json.loads("{" + permit.event + "}") == {
        "permit": knock.permit,
        "endpoint": "image",
        "url": "https://image.example/cat",
    }
    assert permit.used_ms == IMAGE.timeout_ms
