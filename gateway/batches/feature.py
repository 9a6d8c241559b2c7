"""What batches add to a gateway, with their gauges."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.attached import Attached, DatabaseGauges
from fairlane.gateway.batches.batches import Batches
from fairlane.gateway.batches.context import Tools
from fairlane.gateway.batches.leader import Leader
from fairlane.gateway.batches.models import UNENDED, codes_of
from fairlane.gateway.batches.store import BatchStore
from fairlane.gateway.database.tables import batches
from fairlane.gateway.files.files import Files
from fairlane.gateway.metrics.gauges import Gauge, Rows
from fairlane.gateway.runtime import Gateway
from fairlane.queues.metrics import OTHER

MAX_REASONS = 50

# fmt: off
GAUGES = (
    Gauge("fairlane_batches_unended", ("status",), "Unended batches"),
    Gauge(
        "fairlane_batches_stalled", ("reason",),
        "Batches whose lines are all blocked, by the code of the reason"),
    Gauge("fairlane_batch_lines_in_progress", ("status",), "Lines of batches whose tasks are waiting or running"),
)
# fmt: on

_STALLED = and_(batches.c.blocked_on != "", batches.c.waiting == 0, batches.c.running == 0)
_BATCHES = (
    select(
        *(batches.c.status, batches.c.blocked_on, func.count(), func.sum(case((_STALLED, 1), else_=0))),
        *(func.sum(batches.c.waiting), func.sum(batches.c.running)),
    )
    .where(batches.c.status.in_(UNENDED))
    .group_by(batches.c.status, batches.c.blocked_on)
)


async def read_gauges(connection: AsyncConnection) -> Rows:
    """Return the values of GAUGES."""
    return rows_of_batches(await connection.execute(_BATCHES))


def rows_of_batches(groups: Iterable[Sequence[Any]]) -> Rows:
    """Return the gauges of batches. `groups`: their status and what blocks their lines, and the numbers of batches, of those that
    are stalled, and of their waiting and running lines."""
    unended, stalled, lines = (
        Counter(dict.fromkeys(UNENDED, 0)),
        Counter[str](),
        Counter(waiting=0, running=0),
    )
    for status, blocked_on, number, still, waiting, running in groups:
        unended[status] += number
        lines.update(waiting=int(waiting), running=int(running))
        for code in codes_of(blocked_on) if still else ():
            stalled[code if code in stalled or len(stalled) < MAX_REASONS else OTHER] += int(still)
    return {
        "fairlane_batches_unended": {(status,): number for status, number in unended.items()},
        "fairlane_batches_stalled": {(code,): number for code, number in stalled.items()},
        "fairlane_batch_lines_in_progress": {(status,): number for status, number in lines.items()},
    }


def attach(gateway: Gateway) -> Attached:
    """Run batches that no other replica leads."""
    files, store = gateway.part(Files), BatchStore(gateway.database)
    tools = Tools(
        *(
            gateway.current,
            gateway.bodies,
            gateway.submit,
            gateway.cancel,
            gateway.scheduler,
            gateway.results,
        ),
        files=files,
        store=store,
        metrics=gateway.metrics,
    )
    leader = Leader(tools, gateway.replica, gateway.lifecycle)
    batches = Batches(gateway.current, store, files, leader.hurry, gateway.audit)
    return Attached(
        parts=[batches, leader],
        components=[leader],
        gauges=DatabaseGauges(GAUGES, read_gauges),
        end_user=batches.end_of,
        cancel=batches.cancel_any,
    )
