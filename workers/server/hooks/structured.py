"""Structured output: the text of a finished answer is compared with its schema, and requested again once if it does not match."""

from msgspec import Raw

from fairlane.queues.metrics import REPAIRS
from fairlane.queues.tasks import Fragment, Grant, Repair, State, Used
from fairlane.streaming.events import Chunk, fragment_error
from fairlane.streaming.jsontext import json_string
from fairlane.streaming.structured.checker import Checker, Verdict
from fairlane.streaming.structured.repair import repair_request
from fairlane.streaming.structured.requirements import MAX_TEXT_BYTES, schema_of, texts_to_check
from fairlane.streaming.views.choice import choices_of_result
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import pick_usage, put_usage, usage_of_both
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import Finish, Requeue
from fairlane.workers.server.tasks.hook import Answer, AttemptHook

MISMATCHES = {
    "text": "The answer does not match its schema: {}",
    "schema": "The answer could not be compared with its schema: {}",
    "unknown": "The answer could not be compared with its schema: {}",
}
"""Error messages for clients. Operators do not see the part after the colon, as it can quote the answer."""


class OutputView:
    """The output of an attempt so far."""

    __slots__ = ("result",)

    def __init__(self, grant: Grant, task_id: str) -> None:
        self.result = ResultView(TaskInfo(task_id, grant.asked, 0, grant.task_type))

    def add(self, index: int, kind: str, value: str | bytes) -> None:
        delta = json_string(value) if isinstance(value, str) else bytes(value)
        self.result.add_chunk(Chunk(index, kind, Raw(delta)))


class StructuredHook(AttemptHook[Attempt]):
    """See the module. `before` is what an answer used that this attempt repairs, and that counts in addition to its own."""

    __slots__ = ("_before", "_checker", "_schema", "_slots", "_view")

    def __init__(self, slots: Slots, checker: Checker, grant: Grant) -> None:
        self._slots = slots
        self._checker = checker
        self._before = grant.repaired
        self._view = OutputView(grant, grant.task_id)
        self._schema = b""

    def sends(self, attempt: Attempt, payload: bytes) -> bytes:
        grant = attempt.grant
        self._schema = schema_of(grant.answer, payload)
        if (grant.repairs or grant.repaired) and not grant.stream:
            attempt.writer.buffer_until_end()
        return payload

    def output(self, index: int, kind: str, value: str | bytes) -> None:
        self._view.add(index, kind, value)

    def usage(self, usage: bytes) -> bytes:
        """Return the usage for the client: of this attempt, plus of the one whose answer it repairs."""
        if self._before is None:
            return usage
        return usage_of_both(usage, self._before[:4], estimated=self._before.estimated)

    def result(
        self, usage: bytes | None, result: bytes, progress: bytes | None
    ) -> tuple[bytes | None, bytes]:
        if self._before is None:
            return usage, result
        usage = self.usage(pick_usage(usage, result, progress) or b"{}")
        return usage, put_usage(result, usage)

    def completes(self, attempt: Attempt, answer: Answer) -> bool:
        """Have the answer checked. Until then it is as if its end were being written."""
        whole = None if answer.in_chunks else answer.result
        choices = choices_of_result(whole, attempt.grant.task_id) if whole else self._view.result.choices()
        texts = texts_to_check(choices)
        alone = len(choices) == len(texts) == 1 and len(texts[0]) <= MAX_TEXT_BYTES
        repairs = attempt.grant.repairs and alone and not attempt.writer.has_output
        attempt.phase, attempt.end = "finishing", answer.end
        self._slots.background.spawn(self._check(attempt, answer, texts, repairs))
        return True

    async def _check(self, attempt: Attempt, answer: Answer, texts: list[bytes], repairs: bool) -> None:
        slots, grant = self._slots, attempt.grant
        verdict = await self._checker.texts(self._schema, texts, grant.user)
        payload = None
        if repairs and verdict.wrong == "text":
            payload = await slots.background.until_answered(lambda: slots.scheduler.payload(grant.task_id))
        if attempt.phase != "finishing" or attempt.end is not answer.end:
            return  # it has ended otherwise
        if not verdict.wrong:
            attempt.complete(answer, after=self)
        else:
            attempt.phase, attempt.end = "running", None
            self._fail(
                attempt, answer, verdict, payload and repair_request(payload, texts[0], verdict.sentence)
            )

    @staticmethod
    def _fail(attempt: Attempt, answer: Answer, verdict: Verdict, repair: bytes | None) -> None:
        """The answer does not match: request it again with `repair`, if that is possible, or fail."""
        code, used = "JSON_PARSE_FAILED", answer.end.used
        text = MISMATCHES[verdict.wrong].format(verdict.sentence)
        if verdict.wrong == "unknown":  # the model did its work: to run it again is for the caller to decide
            fragment = fragment_error(text, "NOT_CHECKED", True, answer.usage)
            attempt.finish(Finish(State.FAILED, "NOT_CHECKED", fragment, used, blameless=True))
        elif repair:
            failed = Fragment(fragment_error(text, code, False, answer.usage), code)
            why, again = f"{code}, repaired", Repair(repair, used)
            attempt.requeue(Requeue(why, "redo", end=failed, blameless=True, repair=again))
        else:
            attempt.fail(code, text, retryable=False, usage=answer.usage, used=used, blameless=True)

    def ended(self, attempt: Attempt, state: State, code: str, used: Used) -> Used:
        if self._before is None:
            return used
        if state is State.COMPLETED or code == "JSON_PARSE_FAILED":
            metrics = self._slots.scheduler.metrics
            metrics.count(REPAIRS, attempt.grant.model, "failed" if code else "repaired")
        return self._before.plus(used)
