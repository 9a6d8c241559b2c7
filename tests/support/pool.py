"""Short words for the scheduler's calls, for tests of what each one answers."""

from collections.abc import Sequence
from typing import Any, Literal

from tests.contract.store.store import World, drive
from tests.support.direct import Subscription
from tests.support.ids import numbered

from fairlane.gateway.database.tables import UsageRow
from fairlane.gateway.records.entries import Charge, read_charge, read_usage
from fairlane.queues.chains import Advanced, Chain, ChainEnd, ChainStart, Part, Stage, StageEntry, Step
from fairlane.queues.overrides import Actor
from fairlane.queues.rules import Change, Value
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import (
    Append,
    End,
    Ended,
    ExistingTask,
    Finished,
    Fragment,
    Grant,
    Place,
    Rejection,
    Repair,
    RetryAt,
    State,
    Submitted,
    Taken,
    TaskSpec,
    Used,
)

OPS = Actor("ops", "192.0.2.7")
MISMATCH = Fragment(
    b'"error":"The answer does not match its schema: $.a","code":"JSON_PARSE_FAILED","retryable":false',
    "JSON_PARSE_FAILED",
)


class Pool:
    """One replica's calls into a pool with the queues `paid` (weight 4) and `free` (1); model `m` is offered."""

    def __init__(self, world: World, replica: str = "r1", *, limit: int = 0, set_up: bool = True) -> None:
        self.world = world
        self.scheduler: Scheduler = world.scheduler(replica)
        if set_up:
            self.configure(limit)
            self.offer("m")

    def configure(
        self, limit: int = 0, unit: str = "tokens", *, max_length: int = 0, model: str = "m"
    ) -> None:
        queues: dict[str, dict[str, Value]] = {
            "paid": {"weight": 4.0, "max_length": max_length or None},
            "free": {"weight": 1.0, "max_length": max_length or None},
        }
        drive(self.scheduler.configure(queues, {model: {"concurrency": limit or None, "cost": unit}}))

    def set_queue(self, name: str, **values: Value) -> Change:
        """Change settings of a queue while running."""
        change: Change | None = drive(self.scheduler.override("queue", name, values, OPS))
        assert change is not None
        return change

    def set_model(self, name: str = "m", **values: Value) -> Change:
        """Change settings of a model while running."""
        change: Change | None = drive(self.scheduler.override("model", name, values, OPS))
        assert change is not None
        return change

    def offer(
        self,
        *models: str,
        withdrawn: Sequence[str] = (),
        hold_ms: int = 15_000,
        grace_ms: int = 0,
        upstreams: Sequence[str] = (),
    ) -> None:
        """`upstreams`: by each of them every model is offered."""
        pairs = [(model, upstream) for model in models for upstream in upstreams]
        self.scheduler.offer(models, withdrawn, hold_ms, grace_ms, pairs).result()

    def spec(
        self, task_id: str, model: str = "m", queue: str = "free", user: str = "u", **more: Any
    ) -> TaskSpec:
        return TaskSpec(task_id, model, queue, user, more.pop("payload", b"{}"), **more)

    def submit(
        self,
        task_id: str,
        model: str = "m",
        *,
        want: int = 0,
        nonce: str = "",
        chain: ChainStart | None = None,
        **more: Any,
    ) -> Submitted | ExistingTask | Rejection:
        spec = self.spec(task_id, model, **more)
        reply = self.scheduler.submit(spec, want, nonce or self.scheduler.nonce(), "w1", chain=chain)
        return self.scheduler.parse_submit(reply.result())

    def start(
        self, task_id: str, model: str = "m", *, of: int = 3, parts: Sequence[bytes] = (), **more: Any
    ) -> Submitted | ExistingTask | Rejection:
        """Submit a chain."""
        about = {name: more.pop(name) for name in ("reserve", "request", "head") if name in more}
        chain = ChainStart(
            Stage(0, "first"), of, b"a plan", parts=[Part(payload, 10) for payload in parts], **about
        )
        return self.submit(task_id, model, chain=chain, **more)

    def entry(
        self, number: int = 1, model: str = "m", *, name: str = "", parts: Sequence[bytes] = (), **more: Any
    ) -> StageEntry:
        """The next stage of a chain."""
        reserve = more.pop("reserve", 0)
        spec = self.spec("", model, **more)
        return StageEntry(
            Stage(number, name or f"stage{number}"), spec, [Part(payload, 10) for payload in parts], reserve
        )

    def end(self, state: State = State.COMPLETED, code: str = "", **more: Any) -> ChainEnd:
        """The end of a chain."""
        kind = "done" if state is State.COMPLETED else "error"
        return ChainEnd(state, code, (kind, b'{"end":1}'), **more)

    def advance(
        self,
        grant: Grant,
        then: StageEntry | ChainEnd | None = None,
        seq: int = 2,
        *,
        result: bytes = b'"r"',
        chunks: Sequence[bytes] = (),
        told: Sequence[bytes] = (),
        used: tuple[int, ...] = (1, 1),
        want: int = 0,
        models: Sequence[str] = ("m",),
        nonce: str = "",
    ) -> Advanced:
        """A stage, or a part, has completed."""
        step = Step(
            result,
            Used(*used),
            nonce or self.scheduler.nonce(),
            then,
            [("stage", data) for data in told],
            want,
            models,
            "w1",
        )
        reply = self.scheduler.advance(grant, seq, [("chunk", data) for data in chunks], step)
        return self.scheduler.parse_advance(reply.result())

    def chain(self, task_id: str, *, contents: bool = True) -> Chain | None:
        result: Chain | None = drive(self.scheduler.chain(task_id, contents=contents))
        return result

    def run(
        self, task_id: str, model: str = "m", *, worker: str = "w1", upstream: str = "", **more: Any
    ) -> Grant:
        """Submit a task and take it."""
        self.submit(task_id, model, **more)
        (grant,) = self.take(model, worker=worker, upstream=upstream)
        assert grant.task_id == task_id
        return grant

    def take(
        self, *models: str, want: int = 1, nonce: str = "", worker: str = "w1", upstream: str = ""
    ) -> list[Grant]:
        return self.ask(*models, want=want, nonce=nonce, worker=worker, upstream=upstream).grants

    def ask(
        self, *models: str, want: int = 1, nonce: str = "", worker: str = "w1", upstream: str = ""
    ) -> Taken:
        """`take` with the instants it names."""
        reply = self.scheduler.take(models or ["m"], want, nonce or self.scheduler.nonce(), worker, upstream)
        return self.scheduler.parse_take(reply.result())

    def taken(self, *models: str, want: int = 1) -> list[str]:
        """The ids of what a take grants."""
        return [grant.task_id for grant in self.take(*models, want=want)]

    def append(self, grant: Grant, seq: int, *data: bytes, output: bool = True) -> tuple[str, int]:
        events = [("chunk", piece) for piece in data or (b"{}",)]
        reply = self.scheduler.append([Append(grant, seq, events, output)]).result()
        return self.scheduler.parse_append(reply)[0]

    def finish(
        self,
        grant: Grant,
        seq: int = 2,
        *,
        state: State = State.COMPLETED,
        code: str = "X",
        chunks: Sequence[bytes] = (),
        used: tuple[int, ...] = (1, 1),
        want: int = 0,
        models: Sequence[str] = ("m",),
        nonce: str = "",
        slot_ms: int = 0,
    ) -> Finished:
        reply = self.scheduler.finish(
            grant,
            seq,
            [("chunk", data) for data in chunks],
            End(
                state,
                "" if state is State.COMPLETED else code,
                ("done" if state is State.COMPLETED else "error", b'{"end":1}'),
                Used(*used),
                nonce or self.scheduler.nonce(),
                want,
                models,
                worker="w1",
                keep_ms=slot_ms,
            ),
        )
        return self.scheduler.parse_finish(reply.result())

    def requeue(
        self,
        grant: Grant,
        cause: Literal["lost", "failed", "falls", "declined", "repair"] = "lost",
        *,
        begun: bool = False,
        end: Fragment | None = None,
        suspicion: str = "",
        hold_ms: int = 0,
        why: str = "gone",
        repair: Repair | None = None,
        unsent: bool = False,
        grace_ms: int = 0,
        aside_ms: int = 0,
    ) -> Ended:
        more: dict[str, Any] = {"hold_ms": hold_ms, "repair": repair, "unsent": unsent, "grace_ms": grace_ms}
        more["aside_ms"] = aside_ms
        call = self.scheduler.requeue(
            grant, why, cause=cause, begun=begun, end=end, suspicion=suspicion, **more
        )
        result: Ended = drive(call)
        return result

    def sent(self, *grants: Grant) -> RetryAt:
        """The requests of these have left."""
        return self.scheduler.parse_sent(self.scheduler.sent(grants).result())

    def repair(
        self, grant: Grant, payload: bytes = b"{}", used: tuple[int, ...] = (10, 5), end: Fragment = MISMATCH
    ) -> Ended:
        """The answer of an attempt does not match."""
        return self.requeue(grant, "repair", end=end, repair=Repair(payload, Used(*used)))

    def recorded(self) -> dict[str, UsageRow]:
        """The usage records of tasks that have ended, by task."""
        entries = self.world.call("XRANGE", self.world.keys("outbox"), "-", "+")
        rows = (read_usage(fields[1], str) for _, fields in entries if fields[0] == b"usage")
        return {row.task: row for row in rows}

    def charges(self) -> list[Charge]:
        """What was paid, in order."""
        entries = self.world.call("XRANGE", self.world.keys("outbox"), "-", "+")
        return [charge for _, fields in entries if (charge := read_charge(fields[1]))]

    def cancel(self, task_id: str, *, tombstone_ms: int = 0) -> Ended:
        end = Fragment(b'"by":"client"', "")
        result: Ended = drive(
            self.scheduler.cancel(
                task_id,
                state=State.CANCELLED,
                kind="cancelled",
                end=end,
                why="client",
                tombstone_ms=tombstone_ms,
            )
        )
        return result

    def renew(
        self, *held: Grant, read: Sequence[str] = (), worker: str = "w1", begun: bool = True, output: int = -1
    ) -> list[int]:
        holding = [(grant, worker, begun, output) for grant in held]
        result: list[int] = drive(self.scheduler.renew(holding, read))
        return result

    def sweep(self) -> tuple[int, int]:
        result: tuple[int, int] = drive(self.scheduler.sweep())
        return result

    def pass_time(self, ms: int, *, step_ms: int = 1000) -> None:
        """Time with a sweep each second, as live gateways make it."""
        while ms > 0:
            self.world.advance(min(step_ms, ms))
            self.sweep()
            ms -= step_ms

    def play(self, task_id: str, steps: str, **more: Any) -> None:
        """Submit a task and do these steps with it. `5s`: time passes; `CODE`: it fails with this code, having used (10, 5)."""
        self.submit(task_id, **more)
        seq = 2
        for step in steps.split():
            match step:
                case "run":
                    (grant,) = self.take()
                case "output":
                    self.append(grant, seq)
                    seq += 1
                case "renew" | "reports":
                    self.renew(grant, output=10 if step == "reports" else -1)
                case "cancel":
                    self.cancel(task_id)
                case "lost" | "failed":
                    self.requeue(grant, step, begun=step == "failed")
                case "done" | "silent":
                    self.finish(grant, seq, used=(10, 5) if step == "done" else (-1, -1))
                case "stops":
                    self.finish(grant, seq, used=(10, 5, 4, 1, False), slot_ms=1000)
                case _ if step[:-1].isdecimal():
                    self.pass_time(1000 * int(step[:-1]))
                case _:
                    self.finish(grant, seq, state=State.FAILED, code=step, used=(10, 5))

    # ---- looking ----------

    def payload(self, task_id: str) -> bytes | None:
        payload: bytes | None = drive(self.scheduler.payload(task_id))
        return payload

    def kept(self) -> int:
        """Bytes that are kept of tasks that have ended, as the next sweep leaves them."""
        self.sweep()
        return int(self.world.call("HGET", self.world.keys("pool"), "kept") or 0)

    def record(self, task_id: str) -> dict[str, str]:
        flat = self.world.call("HGETALL", self.world.keys("task", id=task_id))
        return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}

    def state(self, task_id: str) -> str:
        return self.record(task_id).get("state", "")

    def code(self, task_id: str) -> str:
        return self.record(task_id)["code"]

    def events(self, task_id: str) -> list[tuple[str, str]]:
        """Ids, their epochs counted from 1, and types of a log."""
        entries = drive(self.scheduler.page(task_id, "-", 1 << 30))
        ids = numbered(f"{entry.epoch}-{entry.seq}" for entry in entries)
        return [(id_, entry.kind) for id_, entry in zip(ids, entries, strict=True)]

    def last_id(self, task_id: str) -> str:
        """The id of the newest event of a log."""
        last = drive(self.scheduler.last_event(task_id))
        return f"{last.epoch}-{last.seq}"

    def place(self, task_id: str) -> Place:
        record = drive(self.scheduler.position(task_id))
        assert record is not None
        place: Place = record.place
        return place

    def charged(self, queue: str = "free", model: str = "m") -> int:
        """Cost charged to a lane so far: tokens, requests or ms."""
        return int(self.world.call("HGET", self.world.keys("model", model=model), f"charged:{queue}") or 0)

    def slots(self, model: str = "m") -> dict[str, int]:
        flat = self.world.call("ZRANGE", self.world.keys("slots", model=model), 0, -1, "WITHSCORES")
        return {flat[i].decode(): int(flat[i + 1]) - self.world.now_ms for i in range(0, len(flat), 2)}

    def ears(self, socket_path: str) -> Subscription:
        """What is published to this replica from now on."""
        return Subscription(socket_path, self.world.keys.channel(self.scheduler.replica))
