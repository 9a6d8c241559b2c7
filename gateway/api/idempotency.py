"""Idempotency keys of submitting calls, and the fingerprint that decides what the same request is.

The same request is the same call with the same members, in any order, each with the same bytes as its value; white space between
members, the key itself and the caller do not count. On OpenAI's calls the headers with Fairlane's options count, as they do in a
native body. Values are not parsed: another spelling of the same value is another request.
"""

import hashlib
import re
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.core.bodies import Bodies, RawObject, value_of
from fairlane.gateway.core.poll import Poll, place_fields, poll_after
from fairlane.gateway.errors import ApiError, bad_request, result_gone
from fairlane.gateway.http.request import Request
from fairlane.gateway.prompts.filling import FilledTemplate, members_of_variables
from fairlane.gateway.settings import Settings
from fairlane.queues.idempotency import digest_text, idempotency_name, pack
from fairlane.queues.tasks import TERMINAL, ExistingTask, State, TaskSpec
from fairlane.streaming.hub import Lost

HEADER: Final = "Idempotency-Key"
FIELD: Final = "idempotencyKey"
"""The member of a native body that holds the key."""
KEY_HEADER: Final = HEADER.lower().encode()
OPTIONS: Final = (
    b"x-fairlane-timeout",
    b"x-fairlane-mode",
    b"x-fairlane-priority",
    b"x-fairlane-on-disconnect",
    b"x-fairlane-result-ttl",
    b"x-fairlane-repair",
    b"x-fairlane-metadata",
)
"""Our options on OpenAI's calls that say what becomes of the task."""
REPLAYED: Final = [(b"idempotency-replayed", b"true")]
"""The header of an answer that describes a task that was submitted before."""
PATIENCE_MS: Final = 36_000
"""Least linger of a task with a key: 30 s for a client whose connection was cut, and the time between two renewals of its
readers."""
_KEY = re.compile(r"[!-~]{1,255}")

Read = TypeVar("Read")


class IdempotencyKey(NamedTuple):
    """The idempotency key of a request, and the fingerprint of the request."""

    key: str
    fingerprint: str
    ttl_ms: int
    """How long the key names its task."""
    most: int
    """Keys that its user may have, of those that name a task for `period_ms`."""
    period_ms: int


async def read_idempotency(
    request: Request, settings: Settings, bodies: Bodies, fields: RawObject, *, native: bool
) -> IdempotencyKey | None:
    """Return the key of a request; None if it has none, or keys are off. To be called before anything changes `fields`.

    Raise ApiError(400) for an invalid key, and if header and body name two.
    """
    if KEY_HEADER not in request.headers and not (native and FIELD in fields):
        return None
    in_header = request.header(KEY_HEADER)
    key = _key(request, in_header, fields if native else {})
    if key is None or not settings.idempotency_ttl_ms:
        return None
    if not settings.has("idempotency"):  # a retry would be a second task, which the client does not expect
        raise bad_request(
            f"{HEADER}: this gateway has idempotency disabled; send the request without it", HEADER
        )
    if native:
        content = {name: value for name, value in fields.items() if name != FIELD}
        return _with_fingerprint(key, await _fingerprint(request, bodies, content, []), settings)
    options = [(name, text) for name in OPTIONS if (text := request.header(name)) is not None]
    return _with_fingerprint(key, await _fingerprint(request, bodies, fields, options), settings)


async def same_task_key(
    request: Request, settings: Settings, bodies: Bodies, fields: RawObject, filled: FilledTemplate
) -> IdempotencyKey | None:
    """Return the key that a route with `same_task` gives to a request for a template. No client can send it: it has a space.

    It depends on the variables, not on the prompt that the template makes of them: with an override for a share of the tasks,
    two equal requests could have different prompts.
    """
    rule = filled.plan.rule
    if rule is None or not rule.same_task_ms or not settings.idempotency_ttl_ms:
        return None
    locale = filled.template.rpartition("\n")[2]
    options = [(b"tier", filled.plan.tier), (b"locale", locale)]
    variables = await members_of_variables(fields, bodies)
    fingerprint = await _fingerprint(request, bodies, variables, options)
    return _with_fingerprint(f"{filled.plan.asked} {fingerprint}", fingerprint, settings, rule.same_task_ms)


def _with_fingerprint(key: str, fingerprint: str, settings: Settings, ttl_ms: int = 0) -> IdempotencyKey:
    """`ttl_ms`: how long the key names its task; 0: as long as a client's own key."""
    period_ms = settings.idempotency_ttl_ms
    most = settings.tuning.max_idempotency_keys
    return IdempotencyKey(key, fingerprint, ttl_ms or period_ms, most, period_ms)


def name_task(task: TaskSpec, key: IdempotencyKey) -> None:
    """Give a task its idempotency key: its client may come back for a while, and a result that was read is kept."""
    name = idempotency_name(task.key, task.user, key.key)
    task.extras["idempotency"] = pack(name, key.fingerprint, key.ttl_ms, key.most, key.period_ms)
    task.idempotency_key = key.key
    task.extras.pop("keep_after_read", None)
    if task.linger_ms:
        task.linger_ms = max(task.linger_ms, PATIENCE_MS)


def _key(request: Request, in_header: str | None, fields: RawObject) -> str | None:
    if in_header is not None:
        values = {value for name, value in request.scope["headers"] if name == KEY_HEADER}
        if len(values) > 1:
            raise bad_request(f"{HEADER} was sent twice with different values", HEADER)
        _check(in_header, HEADER)
    in_body = value_of(fields, FIELD)
    if in_body is None:
        return in_header
    if not isinstance(in_body, str):
        raise bad_request(f"{FIELD} must be a string", FIELD)
    _check(in_body, FIELD)
    if in_header not in (None, in_body):
        raise bad_request(f"{FIELD} must equal the header {HEADER}; send only one of them", FIELD)
    return in_body


def _check(key: str, where: str) -> None:
    if not _KEY.fullmatch(key):
        raise bad_request(f"{where} must be 1 to 255 visible characters of ASCII, without spaces", where)


async def _fingerprint(
    request: Request, bodies: Bodies, content: RawObject, options: Sequence[tuple[bytes, str]]
) -> str:
    size = sum(len(memoryview(value)) for value in content.values())
    return await bodies.run(size, _hash, request.route, content, options)


def _hash(route: str, content: RawObject, options: Sequence[tuple[bytes, str]]) -> str:
    hashed = hashlib.sha256()
    for part in _parts(route, content, options):
        hashed.update(part)
    return digest_text(hashed.digest())


def _parts(
    route: str, content: RawObject, options: Iterable[tuple[bytes, str]]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes to hash: each text behind its length, so that different requests give different bytes."""
    yield b"%d:%b" % (len(route), route.encode())
    for option, text in options:
        yield b"%d:%b%d:%b" % (len(option), option, len(text), text.encode("latin-1"))
    for name in sorted(content):
        value, member = memoryview(content[name]), name.encode()
        yield b"|%d:%b%d:" % (len(member), member, len(value))
        yield value


async def read_log(task_id: str, reading: Awaitable[Read]) -> Read:
    """Return what is read of the log of an ended task. Raise ApiError(410) if the log has expired."""
    try:
        return await reading
    except Lost:
        raise result_gone(task_id) from None


async def state_fields(known: ExistingTask, poll: Poll, caller: Caller) -> dict[str, Any]:
    """Return the state of an async task for a repeated submission, also from the archive. Raise ApiError(410) if it is gone, and
    DatabaseUnavailable."""
    state = known.state
    if state is None:
        try:
            state = State((await poll.archived(known.task_id, caller)).state)
        except ApiError as error:
            if error.status != 404:
                raise
            raise result_gone(known.task_id) from None
    shown: dict[str, Any] = {"taskId": known.task_id, "status": state.value}
    if state is State.QUEUED:
        shown |= place_fields(known.place)
    if state not in TERMINAL:
        shown["pollAfterMs"] = poll_after(known.place.wait_ms)
    return shown
