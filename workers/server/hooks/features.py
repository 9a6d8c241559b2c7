"""The features of attempts, in the order in which their hooks are called."""

from fairlane.queues.keys import is_reserved
from fairlane.queues.tasks import Grant
from fairlane.streaming.structured.checker import Checker
from fairlane.workers.server.hooks.chains import StageHook, Stages
from fairlane.workers.server.hooks.debug import DebugHook
from fairlane.workers.server.hooks.endpoints import EndpointHook
from fairlane.workers.server.hooks.sent import SentHook, SentReports
from fairlane.workers.server.hooks.spans import SpanHook
from fairlane.workers.server.hooks.structured import StructuredHook
from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.accounts import Accounts
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.hook import AttemptHook
from fairlane.workers.tracing import Tracer


class Features:
    """What the features of one replica share. `checker` checks structured output; `tracer`: where traces are wanted."""

    def __init__(self, slots: Slots, accounts: Accounts, checker: Checker, tracer: Tracer | None) -> None:
        self.stages = Stages(slots, accounts)
        self._slots = slots
        self._reports = SentReports(slots)
        self._checker = checker
        self._tracer = tracer

    def hooks_of(self, grant: Grant, worker: Worker) -> tuple[AttemptHook[Attempt], ...]:
        """Return the hooks of the features that an attempt of this grant uses."""
        hooks: list[AttemptHook[Attempt]] = []
        if self._slots.settings.debug_events:
            hooks.append(DebugHook())
        if is_reserved(grant.asked):
            hooks.append(EndpointHook(self._slots.settings))
        if grant.extras:
            if grant.answer:
                hooks.append(StructuredHook(self._slots, self._checker, grant))
            if grant.stage:
                hooks.append(StageHook(self.stages, grant))
            if grant.report_sent:
                hooks.append(SentHook(self._reports))
        if self._tracer is not None:
            hooks.append(SpanHook(self._tracer, grant, worker))
        return tuple(hooks)
