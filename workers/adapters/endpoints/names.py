"""What addresses a host has."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable

Resolve = Callable[[str], Awaitable[list[str]]]
"""A host's addresses, as texts; [] for none. Raises OSError where the question fails."""

MOST_QUESTIONS = 64
"""At a time, each in a thread; who asks beyond them waits. More than there are slow names, as a rule."""


class SystemNames:
    """Asks the system's resolver, one question for all who ask the same at a time. Nothing is kept: the next call asks again."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[list[str]]] = {}
        self._free = asyncio.Semaphore(MOST_QUESTIONS)

    async def __call__(self, host: str) -> list[str]:
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = asyncio.ensure_future(self._ask(host))
            asked.add_done_callback(lambda done: self._over(host, done))
        return await asyncio.shield(asked)

    def asked(self, host: str) -> "asyncio.Future[list[str]] | None":
        """The question after a host that is under way; None: there is none. It goes on when nobody waits for it any more."""
        return self._asked.get(host)

    def _over(self, host: str, asked: asyncio.Future[list[str]]) -> None:
        del self._asked[host]
        if not asked.cancelled():
            asked.exception()  # mark it as seen: whoever asked may be gone

    async def _ask(self, host: str) -> list[str]:
        """In a thread of its own, which keeps no process from ending: a resolver may take half a minute and cannot be stopped."""
        loop = asyncio.get_running_loop()
        async with self._free:
            answer: asyncio.Future[list[str]] = loop.create_future()

            def settle(found: list[str] | OSError) -> None:
                if answer.done():
                    return
                if isinstance(found, OSError):
                    answer.set_exception(found)
                else:
                    answer.set_result(found)

            def ask() -> None:
                found = _addresses(host)
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(settle, found)

            threading.Thread(target=ask, name="resolver", daemon=True).start()
            return await answer


def _addresses(host: str) -> list[str] | OSError:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError:  # a label that is too long
        return OSError("no such name")
    return list(dict.fromkeys(str(row[4][0]) for row in found))
