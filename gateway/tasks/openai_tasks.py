"""Builds the task of a /v1 call: of an HTTP request, or of a line of a batch."""

from functools import partial

from fairlane.gateway.accounts.callers import Caller, check_model
from fairlane.gateway.calls.bodies import RawObject, has_image
from fairlane.gateway.calls.idempotency import IdempotencyKey, name_task
from fairlane.gateway.calls.task_builder import Options, build_task, read_model
from fairlane.gateway.configuration import ActiveConfig
from fairlane.queues.ids import new_task_id
from fairlane.queues.tasks import TaskSpec


def build_openai_task(
    current: ActiveConfig,
    caller: Caller,
    task_type: str,
    body: bytes,
    fields: RawObject,
    options: Options,
    idempotency: IdempotencyKey | None = None,
    task_id: str = "",
) -> TaskSpec:
    """Return the task of an OpenAI body, whose members are `fields`, for the caller that `Caller.named` returned. `task_id`: its
    id; '': a new one. Raise ApiError."""
    name = read_model(fields, caller.only_model)
    check_model(caller, name)
    task_id = task_id or new_task_id()
    task = build_task(
        current.settings,
        caller,
        current.plan(caller, name, partial(has_image, fields), idempotency.key if idempotency else task_id),
        task_id=task_id,
        task_type=task_type,
        payload=body,
        fields=fields,
        options=options,
        tell_model=True,
    )
    name_task(task, idempotency)
    return task
