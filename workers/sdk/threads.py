"""Functions that block, in threads of their own."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start a function in a thread, and return its outcome. The thread cannot be stopped; it is a daemon, so that a function
    that never returns does not keep the process from ending."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()

    def call() -> None:
        try:
            outcome.set_result(function())
        except StopIteration as error:  # which no future can carry
            outcome.set_exception(RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:  # the edge of the thread: the waiting task raises it again
            outcome.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return asyncio.wrap_future(outcome)
