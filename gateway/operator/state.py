"""What an operator sees: queues, models, workers, counts and the most recent tasks, of all replicas together."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fairlane import __version__
from fairlane.gateway.database.database import Database
from fairlane.gateway.endpoints.endpoints import Endpoints
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.operator.overview import (
    configuration_row,
    host_row,
    model_row,
    queue_row,
    task_row,
    worker_row,
)
from fairlane.gateway.settings import QueueSettings
from fairlane.gateway.watch.store import StoreWatch
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import StoreInspector
from fairlane.queues.keys import Keys
from fairlane.queues.store.link import RedisLink
from fairlane.queues.tasks import State
from fairlane.workers.server.background import observe
from fairlane.workers.server.limits.congestion import Congestion


class StateReader:
    """Reads the state of all replicas. `queues`, and the `most_records` that may wait for SQL: as configured now."""

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        store: StoreWatch,
        database: Database,
        inspector: StoreInspector,
        queues: Callable[[], Mapping[str, QueueSettings]],
        most_records: Callable[[], int],
        congestion: Congestion,
        endpoints: Callable[[], Endpoints] = Endpoints,
    ) -> None:
        self._link = link
        self._keys = keys
        self._store = store
        self._database = database
        self._surveyor = inspector
        self._queues = queues
        self._most_records = most_records
        self._congestion = congestion
        self._endpoints = endpoints
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[dict[str, Any]] | None = None
        self._tasks = 0
        """How many of them the next reading is to have."""

    async def read(self, tasks: int) -> dict[str, Any]:
        """The answer of GET /api/admin/overview. Raises StoreError. What it leaves out, `fairlane.queues.inspect.inspector` says.

        One is read at a time. Who asks meanwhile shares the next one, so that nothing in it is older than the question.
        """
        self._tasks = max(self._tasks, tasks)
        if self._next is None:
            self._next = asyncio.create_task(self._read_next(), name="state")
            self._next.add_done_callback(observe)
        state = await asyncio.shield(self._next)
        return {**state, "tasks": state["tasks"][:tasks]}

    async def _read_next(self) -> dict[str, Any]:
        async with self._reading:
            tasks, self._tasks, self._next = self._tasks, 0, None
            return await self._read(tasks)

    async def _read(self, tasks: int) -> dict[str, Any]:
        survey, task_rows = await asyncio.gather(self._surveyor.survey(), self._recent_tasks(tasks))
        queues, limits, endpoints = self._queues(), self._congestion.in_force(), self._endpoints()
        return {
            "now": survey.now_ms,
            "queues": [queue_row(queues[row.queue], row) for row in survey.queues if row.queue in queues],
            "models": [
                model_row(row, limits.get(row.model), endpoints.of_model(row.model))
                for row in survey.models
                if not row.gone
            ],
            "workers": [worker_row(row) for row in survey.workers],
            "counts": {
                "queued": sum(row.waiting for row in survey.queues),
                "executing": sum(row.running for row in survey.models),
                **survey.ended,
                "queuedBytes": survey.queued_bytes,
                "retainedBytes": survey.retained_bytes,
                "droppedEarly": survey.dropped,
                "recordsWaiting": survey.outbox,
                "recordsMax": self._most_records(),
            },
            "store": self.store(),
            "database": self.database(),
            "tasks": task_rows,
            "replicas": [
                {
                    "replica": name,
                    "ageMs": max(15_000 - (end - survey.now_ms), 0),
                    **host_row(survey.hosts.get(name)),
                    "configuration": configuration_row(survey.configurations.get(name), survey.configuration),
                }
                for name, end in survey.replicas.items()
            ],
        }

    def store(self) -> dict[str, Any]:
        """What this replica sees of Redis: where it is; whether it is there and takes writes, else since when not (ms); why."""
        refusals = self._link.write_errors
        since, why = self._store.down_since, self._link.last_error
        if self._link.up:
            since, why = refusals.since, refusals.why
        return {
            "address": self._store.address,
            "up": self._link.up,
            "rejectsWrites": self._store.refuses,
            "since": None if since is None else int(since * 1000),
            "reason": None if since is None else why,
        }

    def database(self) -> dict[str, Any]:
        """What this process sees of the SQL database: where it is; whether it answers, else since when not (ms), and why."""
        trouble = self._database.trouble
        return {
            "address": str(self._database.address),
            "up": trouble is None,
            "since": trouble and trouble.since_ms,
            "reason": trouble and trouble.why,
        }

    async def _recent_tasks(self, count: int) -> list[dict[str, Any]]:
        if not count:
            return []
        ids = await self._link.command("ZREVRANGE", self._keys("recent"), 0, count - 1)
        names = [task.decode() for task in ids]
        replies = [(name, self._link.command("HGETALL", self._keys("task", id=name))) for name in names]
        rows = []
        for name, reply in replies:
            flat = await reply
            fields = {
                field.decode(): value.decode("utf-8", "replace")
                for field, value in zip(flat[::2], flat[1::2], strict=True)
            }
            if fields.get("state") in {state.value for state in State}:
                rows.append(task_row(name, fields))
        return rows


class Picture:
    """Makes the event that all dashboards get. Keeps what it last knew, for the time that Redis is away.

    `presence`: the workers connected here. `about`: what this replica says of itself.
    """

    def __init__(
        self,
        state: StateReader,
        audit: AuditRecord,
        replica: str,
        presence: Callable[[], list[dict[str, Any]]],
        about: Callable[[], dict[str, Any]],
    ) -> None:
        self._state = state
        self._record = audit
        self._replica = replica
        self._presence = presence
        self._about = about
        self._known: dict[str, Any] = {
            "queues": [],
            "models": [],
            "workers": [],
            "counts": {},
            "replicas": [],
        }
        self._as_of: int | None = None
        self._audit: str | None = None

    async def __call__(self) -> bytes:
        try:
            state = await self._state.read(0)
            newest = await self._record.newest()
        except StoreError:
            self._known["workers"] = [
                *(worker_row(row) for row in self._presence()),
                *(row for row in self._known["workers"] if row["replica"] != self._replica),
            ]
        else:
            del state["tasks"]
            self._known, self._as_of = state, state["now"]
            self._audit = newest
        picture = self._known | {
            "now": now_ms(),
            "asOf": self._as_of,
            "store": self._state.store(),
            "database": self._state.database(),
            "audit": self._audit,
            "gateway": {"replica": self._replica, "version": __version__, **self._about()},
        }
        return b"event: state\ndata: " + msgspec.json.encode(picture) + b"\n\n"
