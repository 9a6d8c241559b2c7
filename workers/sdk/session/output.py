"""What one running task still has to send, in order."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fairlane.workers.protocol import TaskChunk, encoder
from fairlane.workers.sdk.values import Key

MAX_WAITING_DELTAS = 64
MAX_WAITING_BYTES = 256 * 1024
MAX_BATCH_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Frame:
    data: bytes
    is_result: bool


class TaskOutput:
    """A bounded queue of encoded deltas and finished frames. Pure: it neither sends nor waits.

    `next_frame` gives one frame at a time: all deltas that wait, in one `taskChunk` (at most 64 KiB, or one
    larger delta), or the next other message. So a delta that finds the way free goes out alone and immediately,
    and deltas that arrive while a send is under way share the next frame. `full` asks the producer to wait;
    nothing is ever dropped.
    """

    __slots__ = (
        "_head",
        "_items",
        "_waiting_bytes",
        "is_queued",
        "key",
        "last_seq",
        "on_room",
        "result_sent",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.last_seq = 0
        """Chunk frames that were handed out so far."""
        self.is_queued = False
        """Whether it is in its session's line; only the session sets this."""
        self.result_sent = False
        self.on_room: Callable[[], None] | None = None
        """Called once, when a frame has been taken and the queue is not full any more."""
        self._items: deque[bytes | _Frame] = deque()
        self._waiting_bytes = 0
        whole = encoder.encode(TaskChunk(task_id=key[0], attempt=key[1]))
        self._head = whole[:-1] + b',"seq":'

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def full(self) -> bool:
        return len(self._items) >= MAX_WAITING_DELTAS or self._waiting_bytes >= MAX_WAITING_BYTES

    def add_delta(self, encoded: bytes) -> None:
        """Append one delta, as JSON."""
        self._items.append(encoded)
        self._waiting_bytes += len(encoded)

    def add_frame(self, data: bytes, *, is_result: bool = False) -> None:
        """Append a message: acknowledgement, progress, or the result, after which nothing follows."""
        self._items.append(_Frame(data, is_result))
        self._waiting_bytes += len(data)

    def final_seq(self) -> int:
        """Chunk frames that will have been handed out when the queue is empty, if nothing is added."""
        seq, size = self.last_seq, 0
        for item in self._items:
            if isinstance(item, _Frame):
                size = 0
            elif size == 0 or size + len(item) > MAX_BATCH_BYTES:
                seq, size = seq + 1, len(item)
            else:
                size += len(item)
        return seq

    def next_frame(self) -> bytes | None:
        """Take the next frame, or None when nothing waits."""
        if not self._items:
            return None
        frame = self._take()
        if self.on_room is not None and not self.full:
            on_room, self.on_room = self.on_room, None
            on_room()
        return frame

    def _take(self) -> bytes:
        first = self._items.popleft()
        if isinstance(first, _Frame):
            self._waiting_bytes -= len(first.data)
            self.result_sent = first.is_result
            return first.data
        deltas = [first]
        size = len(first)
        while self._items:
            following = self._items[0]
            if isinstance(following, _Frame) or size + len(following) > MAX_BATCH_BYTES:
                break
            deltas.append(following)
            size += len(following)
            self._items.popleft()
        self._waiting_bytes -= size
        self.last_seq += 1
        return b'%b%d,"deltas":[%b]}' % (self._head, self.last_seq, b",".join(deltas))
