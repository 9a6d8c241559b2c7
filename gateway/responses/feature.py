"""What stored responses add to a gateway."""

from fairlane.gateway.archive.archive import Archive
from fairlane.gateway.attached import Attached, DatabaseGauges
from fairlane.gateway.responses.log_archive import LogArchive
from fairlane.gateway.responses.pending import ResponseStorage
from fairlane.gateway.responses.quota import GAUGES, StorageQuota, read_gauges
from fairlane.gateway.responses.responses import Responses
from fairlane.gateway.responses.store import ResponseStore
from fairlane.gateway.responses.writer import ResponseWriter
from fairlane.gateway.runtime import Gateway
from fairlane.queues.metrics import RESPONSE_BYTES_STORED, RESPONSES_STORED


def attach(gateway: Gateway) -> Attached:
    """Store responses, and their logs when they have ended."""
    database, metrics, current = gateway.database, gateway.metrics, gateway.current

    def count(size: int) -> None:
        metrics.count(RESPONSES_STORED, "written" if size else "failed")
        metrics.count(RESPONSE_BYTES_STORED, number=size)

    quota = StorageQuota(database, lambda: current.settings.tuning.max_response_bytes_per_caller)
    writer = ResponseWriter(database, gateway.records.erased.of, quota.wrote, count)
    store = ResponseStore(database)
    gateway.part(Archive).keep_logs = LogArchive(database, store, gateway.hub.page, quota.wrote).keep
    responses = Responses(
        current,
        store,
        ResponseStorage(writer, store, gateway.scheduler, gateway.dispatcher.cancels.abandon_soon),
        lambda: database.trouble is None,
        gateway.scheduler,
        gateway.hub,
        gateway.results,
        gateway.cancel,
        gateway.audit.note,
    )
    gauges = DatabaseGauges(GAUGES, read_gauges, every_s=600.0)
    return Attached(parts=[responses], components=[writer, quota], gauges=gauges)
