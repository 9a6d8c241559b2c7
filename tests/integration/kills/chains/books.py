"""What must be true of killed chains when all have ended: of each by itself, and of the books."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from tests.contract.store.store import World
from tests.integration.kills.chains.crowd import Run
from tests.integration.kills.chains.play import BROKEN, NAMES
from tests.support.audit import audit
from tests.support.bank import Bank
from tests.support.ledger import ended_once, events
from tests.support.servers import Server

from fairlane.gateway.database.tables import usage

FAILURES = {"WORKER_LOST", "BAD_REQUEST", "INSUFFICIENT_QUOTA"}
"""How one may fail: its worker was lost while it streamed, or two workers were; nobody can read its page; it cannot be paid."""
MIN_TRIES = 2


def check_store(server: Server, runs: Iterable[str]) -> None:
    """These chains are all there are, and nothing in the whole store contradicts anything else: no slot, no key is left behind.
    Gateways must be gone.
    """
    world = World(server.socket_path, real_clock=True)
    try:
        world.now_us = world.latest_us = time.time_ns() // 1000
        audit(world, runs, carried=True)
    finally:
        world.close()


def check_run(store: Any, run: Run, rows: list[Any]) -> None:
    """One chain: it ended once, its reader saw each event of its log once, and each stage and part succeeded once at most."""
    ended_once(store, run.task_id)
    frames = run.reader.frames
    assert [frame.id for frame in frames] == [event_id for event_id, _ in events(store, run.task_id)], run
    assert not run.reader.restarts, "Redis has lost nothing"
    told, stages = run.told, {stage["name"]: stage for stage in run.told["stages"]}
    assert list(stages) == NAMES
    completed = Counter(
        frame.data["name"]
        for frame in frames
        if frame.event == "stage" and frame.data["status"] == "completed"
    )
    ran = {name for name, stage in stages.items() if stage["status"] == "completed"}
    assert completed == Counter(ran), (told, completed)
    by_stage = defaultdict[str, dict[Any, Any]](dict)
    for row in rows:
        assert row.part not in by_stage[row.stage_name], row
        by_stage[row.stage_name][row.part] = row
    for name, stage in stages.items():
        _check_stage(run, name, stage, by_stage.pop(name, {}))
    assert not by_stage
    if told["status"] == "completed":
        _check_answer(run, ran)
    elif told["status"] == "failed":
        assert told["code"] in FAILURES, told
        assert run.order is None or (told["code"] == "BAD_REQUEST") == (BROKEN in run.order.pages), told


def _check_stage(run: Run, name: str, stage: dict[str, Any], rows: Mapping[Any, Any]) -> None:
    states = Counter(row.state for row in rows.values())
    if stage["status"] == "skipped":
        assert not rows, (name, rows)
    elif stage["status"] == "completed":
        parts = stage.get("parts", 1)
        assert set(rows) == (set(range(parts)) if parts > 1 else {None}), (name, stage, rows)
        assert set(states) == {"completed"}, (name, rows)
        assert run.order is None or parts == run.order.parts(name)
    else:
        assert states["completed"] < sum(states.values()), (name, stage, rows)
        lost = [row for row in rows.values() if row.code == "WORKER_LOST"]
        assert all(row.attempts >= MIN_TRIES or row.first_output for row in lost), (name, lost)


def _check_answer(run: Run, ran: set[str]) -> None:
    frames = run.reader.frames
    begun = max(at for at, frame in enumerate(frames) if frame.event == "start")
    text = "".join(frame.data["delta"] for frame in frames[begun:] if frame.event == "chunk")
    assert frames[-1].data["result"]["content"] == run.told["result"]["content"] == text
    assert run.order is None or (text == run.order.text and ran == set(NAMES) - run.order.skipped), run


async def check_payments(bank: Bank) -> None:
    """The ledger is what Redis holds of each subject, nothing is held any more, and each chain was charged at most once: what
    its rows cost together."""
    await bank.check(*(subject := ["k:rich", "k:poor"]))
    for name in subject:
        balance = await bank.balance_store.find(name)
        assert balance is not None
        assert balance.held == 0
    debits = [row for row in await bank.rows() if row.kind == "task"]
    assert max(Counter(row.id for row in debits).values()) == 1
    async with bank.database.reading() as connection:
        rows = (await connection.execute(select(usage.c.chain, usage.c.cost))).all()
    costs = Counter[str]()
    for chain, cost in rows:
        costs[chain] += cost or 0
    assert {row.id: -row.amount for row in debits if row.amount} == {
        chain: cost for chain, cost in costs.items() if cost
    }
