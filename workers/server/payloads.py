"""Bodies of tasks that were submitted here."""

from collections import OrderedDict
from collections.abc import Callable

KEPT_S = 30.0
"""How long a body is kept. Tasks that wait longer, or end before they begin, need it once from Redis at most, or never."""


class PayloadCache:
    """Bodies of tasks submitted here, so that the usual case needs no read from Redis. Bounded in time and in bytes: the
    oldest go first.
    """

    def __init__(self, limit: int, time: Callable[[], float]) -> None:
        self._limit = limit
        self._time = time
        self._size = 0
        self._bodies: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def put(self, task_id: str, body: bytes) -> None:
        if len(body) > self._limit // 4:
            return
        if task_id in self._bodies:
            self.pop(task_id)
        self._bodies[task_id] = (self._time() + KEPT_S, body)
        self._size += len(body)
        while self._size > self._limit:
            self._drop_oldest()

    def pop(self, task_id: str) -> bytes | None:
        _, body = self._bodies.pop(task_id, (0, None))
        if body is not None:
            self._size -= len(body)
        return body

    def expire(self) -> None:
        """Drop the bodies that were kept for their time."""
        now = self._time()
        while self._bodies and next(iter(self._bodies.values()))[0] <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, old) = self._bodies.popitem(last=False)
        self._size -= len(old)
