"""Which handler runs a task, and how the three kinds of handler become one stream of items."""

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fairlane.workers import protocol
from fairlane.workers.sdk.context import Context
from fairlane.workers.sdk.threads import in_thread
from fairlane.workers.sdk.values import Delta, Result, Task, Usage
from fairlane.workers.tasktypes import ANY_TYPE, MEDIA, takes

Item = str | bytes | Delta | Usage | Result
Handler = Callable[[Task, Context], Any]
ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class Route:
    """A handler with the models and task types (None: any but those that must be named) that it serves."""

    handler: Handler
    models: tuple[str, ...]
    task_types: tuple[str, ...] | None

    def open(self, task: Task, context: Context) -> AsyncGenerator[Item, None]:
        """Start the handler; the caller must close what it gets.

        An async generator is handed on as it is. A coroutine function and a plain function give one `Result`;
        the plain function runs in a thread of its own and, as a thread cannot be stopped, its stream ends
        only when it returns.
        """
        if _is(inspect.isasyncgenfunction, self.handler):
            stream: AsyncGenerator[Item, None] = self.handler(task, context)
            return stream
        if _is(inspect.iscoroutinefunction, self.handler):
            return _from_coroutine(self.handler, task, context)
        return _from_function(self.handler, task, context)


class Registry:
    """The handlers of one worker. An exact model beats `"*"` (any, but endpoints) and `"http:*"` (any endpoint); a named task
    type beats any.
    """

    def __init__(self) -> None:
        self._routes: list[Route] = []

    def add(self, handler: Handler, models: Iterable[str], task_types: Iterable[str] | None) -> None:
        """Add a handler; without task types it serves any but those that must be named (`tasktypes.py`). Raise `TypeError` or
        `ValueError` with a sentence when it cannot serve as one.
        """
        if isinstance(models, str) or isinstance(task_types, str):
            raise TypeError("models and task_types are lists of names, not one name.")
        names = tuple(models)
        types = None if task_types is None else tuple(task_types)
        if not names or not all(names):
            raise ValueError('A handler needs at least one model name; ["*"] serves any.')
        if types == ():
            raise ValueError("task_types is empty; leave it out to serve any type.")
        if _is(inspect.isgeneratorfunction, handler):
            raise TypeError("A handler that yields must be an async generator (async def).")
        try:
            inspect.signature(handler).bind(None, None)
        except TypeError as error:
            raise TypeError("A handler takes two arguments: the task and its context.") from error
        self._routes.append(Route(handler, names, types))

    def find(self, model: str, task_type: str) -> Route | None:
        """The handler for a task, or None when this worker has none."""
        any_of_these = protocol.ANY_ENDPOINT if model.startswith(protocol.ENDPOINT_PREFIX) else ANY_MODEL
        routes = (
            route
            for route in self._routes
            if {model, any_of_these} & {*route.models} and takes(route.task_types, task_type)
        )
        return max(
            routes,
            key=lambda route: (model in route.models, task_type in (route.task_types or ())),
            default=None,
        )

    @property
    def models(self) -> list[str]:
        """All models, in the order in which they were named."""
        return list(dict.fromkeys(model for route in self._routes for model in route.models))

    @property
    def task_types(self) -> list[str] | None:
        """Return all task types as they are registered. If a handler takes any: None, or `"*"` with those that must be named."""
        found: dict[str, None] = {}
        for route in self._routes:
            found.update(dict.fromkeys(route.task_types or (ANY_TYPE,)))
        if ANY_TYPE not in found:
            return list(found)
        named = [task_type for task_type in found if task_type in MEDIA]
        return [ANY_TYPE, *named] if named else None


def _is(test: Callable[[Any], bool], handler: Handler) -> bool:
    """Whether a function, or an object that is called like one, is of the kind that `test` knows."""
    return test(handler) or test(getattr(handler, "__call__", None))  # noqa: B004 (the method is wanted)


async def _from_coroutine(handler: Handler, task: Task, context: Context) -> AsyncGenerator[Item, None]:
    yield Result(await handler(task, context))


async def _from_function(handler: Handler, task: Task, context: Context) -> AsyncGenerator[Item, None]:
    outcome = in_thread(functools.partial(handler, task, context), f"task-{task.task_id}")
    try:
        value = await asyncio.shield(outcome)
    except asyncio.CancelledError:  # its slot is busy until it returns
        await asyncio.wait([outcome])
        raise
    yield Result(value)
