"""Server-sent events, read from bytes as they come."""

MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_TEXT = 8 * 1024
"""Bytes that are kept of text between events: what a server that gives no answer says."""


class EventTooLargeError(ValueError):
    """One event is larger than any sensible one."""


class ErrorEvent(bytes):
    """The data of an event that is named `error`."""


class EventParser:
    """Collects bytes and gives out the `data` of each event once its blank line has come. Pure.

    Takes LF, CRLF and CR, cut anywhere; `data:` with and without a space; comments and other fields are
    skipped, events without data give nothing. A line that is a JSON object is an event of its own; `text` is what else came.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._tail = bytearray()  # the line that has not ended yet
        self.text = bytearray()
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes. Raise `EventTooLargeError`."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        complete, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._tail += rest
            self._check_size()
            return []
        lines = (bytes(self._tail) + complete).split(b"\n")
        self._tail = bytearray(rest)
        events = []
        for line in lines:
            event = self._take(line)
            if event is not None:
                events.append(event)
        self._check_size()
        return events

    def close(self) -> list[bytes]:
        """End the stream. Return the data of an event without its blank line, if there is one."""
        lines, self._tail = [bytes(self._tail), b""], bytearray()
        return [event for line in lines if (event := self._take(line)) is not None]

    def _take(self, line: bytes) -> bytes | None:
        if self._at_start:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        if line.startswith(b"data:"):
            value = line[6:] if line.startswith(b"data: ") else line[5:]
            self._data.append(value)
            self._data_bytes += len(line)  # also of a line that says nothing
        elif not line:
            event, named, self._name = b"\n".join(self._data), self._name, b""
            if self._data or named == b"error":
                self._data.clear()
                self._data_bytes = 0
                return ErrorEvent(event) if named == b"error" else event
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()
        elif line.startswith(b"{") and line.endswith(b"}") and not self._data:
            return line
        elif not line.startswith((b":", b"id:", b"retry:")) and len(self.text) < MAX_TEXT:
            self.text += line[:MAX_TEXT] + b"\n"
        return None

    def _check_size(self) -> None:
        if self._data_bytes + len(self._tail) > self._max_event_bytes:
            raise EventTooLargeError(f"an event of more than {self._max_event_bytes} bytes")
