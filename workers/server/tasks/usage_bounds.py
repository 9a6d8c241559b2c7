"""Bounds of the usage that a worker reports, by the request and by the output that the gateway has seen. Pure.

A worker can neither charge more than its task may have used, nor give an answer away. Where the gateway cannot see what a model
read or thought, the bounds are wide, so that honest usage passes: of images, audio, retrieved documents and hidden reasoning.
"""

import re
from typing import NamedTuple

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
_CHAT = frozenset({"openaiLike", "openaiCompletion"})
_MEDIA = (b'_url"', b'"image', b'"video', b'"input_audio"', b'"file')
_MAXIMUM = re.compile(rb'"max(?:_completion|_output)?_tokens"\s*:\s*(\d{1,9})')
_CHOICES = re.compile(rb'"n"\s*:\s*(\d{1,3})')


class UsageBounds(NamedTuple):
    """What one attempt can have used, in tokens."""

    input: int = MEDIA_INPUT
    output: int = 0
    """The maximum that the request sets for all its choices; 0: none."""
    is_text: bool = False
    """Whether the output is text, so that it has tokens."""

    def is_doubtful(self, output: int | None, size: int) -> bool:
        """Return whether the text of a result of this size has to be measured: its output is unknown, very small, or large."""
        wrote = output or 0
        return wrote * MAX_BYTES_OF_TOKEN < size or 0 < self.output < wrote

    def limited(self, counts: Counts, seen: int) -> Counts:
        """Return the counts, with at most what the attempt can have used. `seen`: bytes of output."""
        most = max(self.output, seen) + STOP_TOKENS if self.output else seen + HIDDEN_OUTPUT
        bounds = (self.input, most, self.input, most)
        return Counts(*(count and min(count, bound) for count, bound in zip(counts, bounds, strict=True)))

    def without_gifts(self, counts: Counts, said: int) -> Counts:
        """Return the counts, without those that are too small for `said` bytes of text: they are to be estimated."""
        if not self.is_text or not said:
            return counts
        wrote = None if counts.output is None else counts.output + (counts.reasoning or 0)
        if wrote is not None and wrote * MAX_BYTES_OF_TOKEN < said:
            counts = counts._replace(output=None)
        return counts if counts.input or counts.cached else counts._replace(input=None)


def usage_bounds(payload: bytes, task_type: str) -> UsageBounds:
    """Return the bounds of an attempt with this payload. Member names are searched, not parsed: a match elsewhere widens them."""
    known = task_type in _CHAT or task_type == "openaiEmbedding"
    hidden = HIDDEN_INPUT if known and not any(map(payload.__contains__, _MEDIA)) else MEDIA_INPUT
    output = 0
    if task_type == "openaiLike" and (found := _MAXIMUM.findall(payload)):
        output = max(map(int, found)) * max(1, *map(int, _CHOICES.findall(payload)), 1)
    return UsageBounds(len(payload) + hidden, output, task_type in _CHAT)
