"""A stream of an answer in blocks, one after the other: thoughts, texts, calls. Messages and Responses are such streams."""

from abc import abstractmethod
from collections.abc import Mapping

import msgspec

from fairlane.streaming.jsontext import members, one_line
from fairlane.streaming.tool_calls import Arguments, Piece, read_pieces
from fairlane.streaming.views.choice import Choice, choices_of_result, pieces
from fairlane.streaming.views.stream import StreamView
from fairlane.streaming.views.task import TaskInfo

_string = msgspec.json.Decoder(str).decode


class _Call:
    __slots__ = ("arguments", "held", "id", "name", "shown")

    def __init__(self, piece: Piece) -> None:
        self.id, self.name = one_line(piece.id), one_line(piece.function.name)
        self.held: list[bytes] = []
        """Insides of JSON strings that wait for the calls before."""
        self.shown = False
        self.arguments = Arguments()


class BlockStreamView(StreamView):
    """Each block is whole before the next one begins; subclasses say what one looks like. The first choice is shown.

    What belongs to a later call waits while an earlier one has no whole object as its arguments, and so does everything else. A
    call begins with its arguments; one that has none begins at the end.
    """

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._open = ""
        """What the open block is: text, refusal, thinking, tool, or another kind of a subclass."""
        self._calls: list[_Call] = []
        self._at = 0
        """Which call is shown, or comes next; those before it have ended."""
        self._thought = self._content = self._called = self._refused = False
        self._finish: bytes | None = None
        self._held: list[tuple[str, bytes]] = []
        """Chunks that wait for the end of a call."""

    def _chunk(self, index: int, kind: str, delta: bytes) -> bytes:
        if index != 0:
            return b""
        before = b""
        if self._open == "tool" and kind not in ("tool", "finish"):
            if self._busy:
                self._held.append((kind, delta))
                return b""
            before = self._leave()
        if kind == "text":
            self._content = True
            return before + self._text(delta)
        if kind == "reasoning":
            self._thought = True
            return before + self._thinking(delta)
        if kind == "refusal":
            self._content = self._refused = True
            return before + self._refusal(delta)
        if kind == "tool":
            frames = b"".join([self._add(piece) for piece in read_pieces(delta)])
            return frames + self._release() if self._held and not self._busy else frames
        if kind == "finish":
            self._finish = bytes(delta)
            return b""
        return before + self._extra(members(delta) or {})

    # ---- calls ----------

    @property
    def _open_call(self) -> _Call | None:
        """The call that has begun and not ended."""
        return self._calls[self._at] if self._at < len(self._calls) and self._calls[self._at].shown else None

    @property
    def _busy(self) -> bool:
        """Whether a call has begun that is not whole."""
        return self._open_call is not None and not self._open_call.arguments.whole

    def _add(self, piece: Piece) -> bytes:
        """Add a piece of a call, and show what may be shown: of the first call that has not ended, and of the next one once that
        is whole."""
        if piece.index == len(self._calls):
            self._calls.append(_Call(piece))
        if piece.index < self._at:
            return b""
        call = self._calls[piece.index]
        if inside := bytes(piece.function.arguments)[1:-1]:
            call.held.append(inside)
            call.arguments.add(_string(piece.function.arguments))
        frames = []
        while True:
            call, following = self._calls[self._at], self._calls[self._at + 1 : self._at + 2]
            if call.held:
                frames.append(self._show(call))
            if not call.arguments.whole or not following or not following[0].held:
                return b"".join(frames)
            frames.append(self._leave())

    def _show(self, call: _Call) -> bytes:
        frames = b""
        if not call.shown:
            call.shown = self._content = self._called = True
            frames = self._begin_call(call.id, call.name)
        if call.held:
            frames += self._arguments(b'"%b"' % b"".join(call.held))
            call.held.clear()
        return frames

    def _leave(self) -> bytes:
        """The end of the call that has begun."""
        self._at += 1
        return self._end_call()

    def _release(self) -> bytes:
        """What waited for calls."""
        frames = [self._leave()] if self._open_call else []
        held, self._held = self._held, []
        return b"".join([*frames, *(self._chunk(0, kind, delta) for kind, delta in held)])

    def _left(self, result: bytes | None = None) -> bytes:
        """What is left: no more chunks come. Of a result, what it says where the chunks showed no content."""
        frames = []
        if result is not None:
            choices = choices_of_result(result, self._info.task_id)
            choice = next((one for one in choices if one.index == 0), Choice(0))
            self._finish = choice.finish or self._finish
            if not self._content:
                frames = [
                    self._chunk(0, kind, delta) for kind, delta in pieces(choice, thought=self._thought)
                ]
        while self._at < len(self._calls):
            frames += [self._show(self._calls[self._at]), self._leave()]
        return b"".join([*frames, self._release()])

    # ---- what a block looks like ----------

    @abstractmethod
    def _text(self, delta: bytes) -> bytes:
        """More of a text."""

    @abstractmethod
    def _refusal(self, delta: bytes) -> bytes:
        """More of a refusal."""

    @abstractmethod
    def _thinking(self, delta: bytes) -> bytes:
        """More of what the model thinks."""

    @abstractmethod
    def _begin_call(self, call_id: bytes, name: bytes) -> bytes:
        """A call begins; both are JSON strings."""

    @abstractmethod
    def _arguments(self, delta: bytes) -> bytes:
        """More of its arguments."""

    @abstractmethod
    def _end_call(self) -> bytes:
        """It is whole, and no block is open."""

    @abstractmethod
    def _extra(self, found: Mapping[str, bytes]) -> bytes:
        """Other members of the choice."""
