"""Bodies of tasks that were submitted here."""

from collections import OrderedDict


class PayloadCache:
    """Bodies of tasks submitted here, so that the usual case needs no read from Redis. Bounded; the oldest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    def put(self, task_id: str, body: bytes) -> None:
        if len(body) > self._limit // 4:
            return
        self.pop(task_id)
        self._bodies[task_id] = body
        self._size += len(body)
        while self._size > self._limit:
            _, old = self._bodies.popitem(last=False)
            self._size -= len(old)

    def pop(self, task_id: str) -> bytes | None:
        body = self._bodies.pop(task_id, None)
        if body is not None:
            self._size -= len(body)
        return body
