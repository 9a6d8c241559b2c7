"""What an attempt used: as its worker reports it, within its bounds, else estimated from its request and its output. Pure."""

from fairlane.queues.keys import is_reserved
from fairlane.queues.tasks import Grant, Used
from fairlane.streaming.views.choice import choices_of_result, said_bytes
from fairlane.streaming.views.usage import Counts, normalise_usage
from fairlane.workers.server.tasks.output import Output
from fairlane.workers.server.tasks.usage_bounds import MEDIA_INPUT, Request, is_doubtful
from fairlane.workers.tasktypes import MEDIA

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
