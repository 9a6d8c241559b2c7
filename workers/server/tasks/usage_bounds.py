"""Bounds of the usage that a worker reports, by the request and by the output that the gateway has seen. Pure.

A worker can neither charge more than its task may have used, nor give an answer away. Where the gateway cannot see what a model
read or thought, the bounds are wide, so that honest usage passes: of images, audio, retrieved documents and hidden reasoning.
"""

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from fairlane.streaming.views.usage import Counts

HIDDEN_INPUT = 32_768
"""Input tokens beyond one for each byte of the request: templates, system prompts and documents that the server adds."""
MEDIA_INPUT = 1_000_000
"""The same if the request leads to images, audio or files, or only its worker knows what it asks for."""
HIDDEN_OUTPUT = 131_072
"""Output tokens beyond one for each byte of the output, if the request sets no maximum: reasoning that is not shown."""
STOP_TOKENS = 16
"""Output tokens beyond the maximum of the request: servers differ in whether the last ones count."""
MAX_BYTES_OF_TOKEN = 32
"""More bytes of text than a token has, on average over an answer."""
MIN_BYTES_OF_TOKEN = 4
"""Fewer bytes of a result than it has for each token, as a rule."""
MAX_READ = 256 * 1024
"""Bytes of a request that is kept until its attempt ends, to be read if much was used; a larger one may hold anything."""
_CHAT = frozenset({"openaiLike", "openaiCompletion"})
_MEDIA = (b'_url"', b'"image', b'"video', b'"input_audio"', b'"file')


class _Asked(Struct, gc=False):
    max_completion_tokens: Any = None
    max_tokens: Any = None
    n: Any = None


_asked = msgspec.json.Decoder(_Asked).decode


class Request(NamedTuple):
    """The request of an attempt: its size in bytes, and its `payload` if that is kept."""

    task_type: str
    size: int = 0
    payload: bytes = b""

    def limited(self, counts: Counts, seen: int) -> Counts:
        """Return the counts, with at most what the attempt can have used. `seen`: bytes of output."""
        read, wrote = self.size + HIDDEN_INPUT, seen + STOP_TOKENS
        reads_more = max(counts.input or 0, counts.cached or 0) > read
        writes_more = max(counts.output or 0, counts.reasoning or 0) > wrote
        if not reads_more and not writes_more:
            return counts
        if reads_more and self._may_hold_media():
            read = self.size + MEDIA_INPUT
        if writes_more:
            most = self._max_output()
            wrote = max(wrote, most + STOP_TOKENS) if most else seen + HIDDEN_OUTPUT
        bounds = (read, wrote, read, wrote)
        return Counts(*(count and min(count, bound) for count, bound in zip(counts, bounds, strict=True)))

    def without_gifts(self, counts: Counts, said: int) -> Counts:
        """Return the counts, without those that are too small for `said` bytes of text: they are to be estimated."""
        if self.task_type not in _CHAT or not said:
            return counts
        wrote = None if counts.output is None else counts.output + (counts.reasoning or 0)
        if wrote is not None and wrote * MAX_BYTES_OF_TOKEN < said:
            counts = counts._replace(output=None)
        return counts if counts.input or counts.cached else counts._replace(input=None)

    def _may_hold_media(self) -> bool:
        known = self.payload and (self.task_type in _CHAT or self.task_type == "openaiEmbedding")
        return not known or any(map(self.payload.__contains__, _MEDIA))

    def _max_output(self) -> int:
        """Return the most tokens of output that it allows for all its choices; 0: it sets no maximum."""
        if self.task_type != "openaiLike" or not self.payload:
            return 0
        try:
            asked = _asked(self.payload)
        except msgspec.MsgspecError:  # it is no object
            return 0
        most = [value for value in (asked.max_completion_tokens, asked.max_tokens) if value is not None]
        choices = 1 if asked.n is None else asked.n
        if any(type(value) is not int or value < 1 for value in (*most, choices)):
            return 0
        return max(most, default=0) * choices


def is_doubtful(output: int | None, size: int) -> bool:
    """Return whether the text of a result of this size has to be measured: its output is unknown, very small, or large."""
    tokens = output or 0
    return tokens * MAX_BYTES_OF_TOKEN < size or tokens * MIN_BYTES_OF_TOKEN > size
