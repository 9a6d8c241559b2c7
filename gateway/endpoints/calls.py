"""Native calls for endpoints: `{type: http|permit, url, method, …}`."""

from collections.abc import Awaitable

from fairlane.gateway.accounts.in_flight import InFlightRequests
from fairlane.gateway.attached import AnswerMode, NativeCall, NativeTask
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import Bodies, value_of
from fairlane.gateway.core.spec import read_flag, read_options
from fairlane.gateway.endpoints.requests import MEMBERS, endpoint_task, read_endpoint_request
from fairlane.gateway.errors import bad_request
from fairlane.gateway.lifecycle import Part
from fairlane.gateway.settings import suggestion
from fairlane.queues.tasks import HTTP, PERMIT
from fairlane.streaming.jsontext import kind_of


class EndpointCalls:
    """Makes the tasks of calls that name an endpoint or a URL."""

    def __init__(self, current: ActiveConfig, calls: InFlightRequests, bodies: Bodies, part: Part) -> None:
        self._current = current
        self._calls = calls
        self._bodies = bodies
        self._part = part

    def prepare(self, call: NativeCall) -> Awaitable[NativeTask] | None:
        """See `Attached`."""
        fields = call.fields
        if kind_of(fields.get("template") or b""):
            return None
        task_type = value_of(fields, "type")
        return self._prepare(call, task_type) if task_type in (HTTP, PERMIT) else None

    async def _prepare(self, call: NativeCall, task_type: str) -> NativeTask:
        fields = call.fields
        for member in fields:
            if member not in MEMBERS:
                hint = suggestion(member, MEMBERS)
                raise bad_request(f"A task of type {task_type} has no {member[:100]!r}{hint}", member)
        size = sum(memoryview(fields[name]).nbytes for name in ("body", "bodyBase64") if name in fields)
        target = await self._bodies.run(size, read_endpoint_request, fields, task_type)
        self._calls.name(call.request, call.caller)
        asynchronous, stream = read_flag(fields, "async"), read_flag(fields, "stream")
        permit = task_type == PERMIT  # its client does not wait for the end, but polls or reads the stream
        options = read_options(fields, wait=not asynchronous and not permit, stream=stream)
        if permit and stream and not asynchronous and options.on_disconnect is None:
            options.on_disconnect = "cancel"
        task = endpoint_task(
            *(self._current, call.caller, target, task_type, options),
            task_id=call.task_id,
            subject=call.subject,
            part=self._part,
        )
        if asynchronous or (permit and not stream):
            return NativeTask(task, AnswerMode.LATER)
        return NativeTask(task, AnswerMode.STREAM if stream else AnswerMode.WAIT)
