"""Settings of the scheduler and the dispatcher, and the ends of tasks that neither a worker nor a client ends. Pure."""

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.endpoints.payloads import worker_payload
from fairlane.gateway.settings import Settings
from fairlane.queues.scheduler import Ends, Limits
from fairlane.queues.tasks import Fragment
from fairlane.streaming.events import cancelled_end, fragment_error
from fairlane.workers.server.settings import DispatchSettings, OutputLimits

ENDS = Ends(
    timeout=Fragment(fragment_error("Task timeout", "TOTAL_TIMEOUT", False), "TOTAL_TIMEOUT"),
    queue_timeout=Fragment(fragment_error("Task timeout", "QUEUE_TIMEOUT", False), "QUEUE_TIMEOUT"),
    worker_lost=Fragment(fragment_error("Worker disconnected", "WORKER_LOST", False), "WORKER_LOST"),
    no_worker=Fragment(fragment_error("Worker disconnected", "WORKER_LOST", True), "WORKER_LOST"),
    left=cancelled_end("client"),
    unavailable=Fragment(
        fragment_error("The model is unavailable: its upstream fails", "MODEL_UNAVAILABLE", True),
        "MODEL_UNAVAILABLE",
    ),
    busy=Fragment(
        fragment_error(
            "The task's time is over, and the model's provider still takes no request", "MODEL_TOO_BUSY", True
        ),
        "MODEL_TOO_BUSY",
    ),
)


def limits_of(settings: Settings) -> Limits:
    """Return the limits that apply to every task."""
    return Limits(
        lease_ms=settings.lease_ms,
        grant_ms=settings.tuning.grant_ack_ms,
        max_queue_length=settings.max_queue_length,
        max_queued_bytes=settings.max_queued_bytes,
        max_retained_bytes=settings.max_retained_bytes,
        max_outbox=settings.tuning.outbox_max_entries,
    )


def dispatch_settings(current: ActiveConfig) -> DispatchSettings:
    """Return the settings that apply to tasks of workers."""
    settings = current.settings
    return DispatchSettings(
        endpoints=tuple(sorted(endpoint.model for endpoint in current.endpoints)),
        complete=lambda model, payload: worker_payload(current.endpoints, model, payload),
        flush_interval_ms=settings.stream_flush_interval_ms,
        flush_chunks=settings.stream_flush_size,
        no_worker_grace_ms=settings.no_worker_grace_ms,
        expected=settings.listed_models,
        dead_after_ms=settings.tuning.dead_after_ms,
        max_output_bytes=settings.max_output_bytes,
        debug_events=settings.llm_debug and settings.environment != "production",
        output_limits={
            name: OutputLimits(model.first_output_ms, model.silence_ms, model.adaptive_timeouts)
            for name, model in current.overlay.settings.models.items()
            if model.first_output_ms or model.silence_ms
        },
    )
