"""What an attempt used: as its worker reports it, within its bounds, else estimated from its request and its output. Pure.

The bounds come from the request and the output that the gateway has seen. A worker can neither charge more than its task may
have used, nor give an answer away. Where the gateway cannot see what a model read or thought, the bounds are wide, so that honest
usage passes: of images, audio, retrieved documents and hidden reasoning.
"""

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from fairlane.queues.keys import is_reserved
from fairlane.queues.tasks import Grant, Used
from fairlane.streaming.views.choice import choices_of_result, said_bytes
from fairlane.streaming.views.usage import Counts, normalise_usage
from fairlane.workers.server.tasks.output import Output
from fairlane.workers.tasktypes import MEDIA

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


INTERVAL_S = 0.2
"""Usage that a worker reports while a task runs is logged no more often."""


class Usage:
    """See the module.

    `request`: what is known of the request. `progress`: what the worker reported last while it ran. `corrected`: the counts that
    a worker reported and cannot have used, and those that count.
    """

    __slots__ = ("_grant", "_logged_at", "_wrote_then", "corrected", "output", "progress", "request")

    def __init__(self, grant: Grant, output: Output) -> None:
        self._grant = grant
        self.output = output
        self.request = Request(grant.task_type)
        self.progress: bytes | None = None
        self._wrote_then = 0  # when that was reported
        self._logged_at = 0.0
        self.corrected: tuple[Counts, Counts] | None = None

    def report(self, usage: bytes, now: float) -> bool:
        """Take usage that the worker reports while it runs. Return whether to log it."""
        self.progress, self._wrote_then = usage, self.tokens
        if now - self._logged_at < INTERVAL_S:
            return False
        self._logged_at = now
        return True

    @property
    def tokens(self) -> int:
        """How many tokens the worker wrote, estimated: one for four bytes. What media hold is no text, as a rule."""
        return 0 if self._grant.task_type in MEDIA else -(-self.output.size // 4)

    def of(self, usage: bytes | None, result: bytes) -> Used:
        """Return the tokens used: from the worker, else from its result, else from its progress and the output since, else
        estimated from all output."""
        grant = self._grant
        reported = normalise_usage(usage, result)
        if grant.task_type in MEDIA:
            return self._of_media(reported)
        size = self.output.size
        embeds = grant.task_type == "openaiEmbedding"  # no output but what is written all the same
        if not size and not embeds and is_doubtful(reported.output, len(result)):
            size = sum(map(said_bytes, choices_of_result(result, grant.task_id)))
        if reported.input is None and reported.output is None:
            return self._estimate(size)
        if embeds and reported.output is None:
            reported = reported._replace(output=-(-size // 4))
        return self._completed(reported, size, size, size or len(result))

    def estimate(self) -> Used:
        """Return the tokens used so far: from the last progress and the output since, else estimated."""
        return self._estimate(self.output.size)

    def _estimate(self, size: int) -> Used:
        reported = normalise_usage(self.progress)
        if self._grant.task_type in MEDIA:
            return self._of_media(reported)
        since = 0 if reported.output is None else max(-(-size // 4) - self._wrote_then, 0)
        used = self._completed(reported, size, 0, size)
        return used._replace(output=used.output + since, estimated=True) if since else used

    def _of_media(self, reported: Counts) -> Used:
        """Return the reported usage: the tokens of audio or an image cannot be estimated."""
        if reported.input is None and reported.output is None:
            reported = normalise_usage(self.progress)
        if reported.input is None and reported.output is None:
            return Used()
        counts = self._bounded(reported, 0, MEDIA_INPUT)
        return Used(counts.input or 0, counts.output or 0, -1 if counts.cached is None else counts.cached)

    def _completed(self, reported: Counts, size: int, said: int, seen: int) -> Used:
        """Return the reported usage within its bounds, with estimates of the input and of the output where they are missing.
        `said`: bytes of text that the usage must account for, `seen`: the most bytes of output. Endpoints have no tokens."""
        if is_reserved(self._grant.model):
            return Used(0, 0)
        counts = self._bounded(reported, said, seen)
        return Used(
            self.request.size // 4 if counts.input is None else counts.input,
            -(-size // 4) if counts.output is None else counts.output,
            -1 if counts.cached is None else counts.cached,
            -1 if counts.reasoning is None else counts.reasoning,
            counts != reported or counts.input is None or counts.output is None,
        )

    def _bounded(self, reported: Counts, said: int, seen: int) -> Counts:
        counts = self.request.without_gifts(self.request.limited(reported, seen), said)
        if counts != reported:
            self.corrected = reported, counts
        return counts
