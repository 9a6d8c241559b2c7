"""Turn a call that names an endpoint, or a URL, into a task of its line.

The stored request has one form: the normalised URL, the headers that may pass, the body. Access is checked here; the operator's
other settings of the endpoint are applied at the grant (`gateway/endpoints/payloads.py`).
"""

import base64
import binascii
from collections.abc import Awaitable, Iterator
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.attached import AnswerMode, NativeCall, NativeTask
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import OVERSIZED, RawObject, value_of
from fairlane.gateway.core.spec import OWN_FIELDS, Options, TaskBuilder, read_flag, read_options
from fairlane.gateway.endpoints.endpoints import BadUrl, Endpoint, NoEndpoint, WrongMethod
from fairlane.gateway.endpoints.headers import BadHeader, passed_headers
from fairlane.gateway.endpoints.payloads import payload_of
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.lifecycle import Part
from fairlane.gateway.permits.gate import Gate
from fairlane.gateway.runtime import Gateway
from fairlane.gateway.settings import suggestion
from fairlane.queues.tasks import HTTP, PERMIT, TaskSpec
from fairlane.streaming.jsontext import kind_of
from fairlane.workers.adapters.endpoints.headers import Header
from fairlane.workers.adapters.targets import Target

MEMBERS = (
    *("type", "stream", "url", "endpoint", "method", "headers", "query", "body", "bodyBase64"),
    *(name for name in OWN_FIELDS if name != "repair"),
)
"""Members of a native call for an endpoint."""
MAX_WAIT_MS = 3 * 3_600_000
"""Longest wait of a task without a timeout that no call waits for."""
KEEP_MS = 3_600_000
"""Lifetime of its result in Redis."""
AFTER_READ_MS = 20_000
"""The same once its client has read it."""
RUN_MARGIN_MS = 5000
"""Added to the endpoint's timeout: within it the worker reports the answer."""
NONE = "No endpoint is configured for this URL"
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
BYTES_TYPE = "application/octet-stream"


class EndpointRequest(NamedTuple):
    """A request for an endpoint."""

    url: str | None
    """None: that of the endpoint, which must be one alone."""
    method: str
    endpoint: str | None = None
    """None: the one that the URL means."""
    query: str = ""
    """Appended to the query of the URL."""
    headers: tuple[Header, ...] = ()
    body: bytes | None = None
    """The JSON of a text."""
    encoded: bytes | None = None
    """The JSON of base64, in the place of a text."""
    bytes_of_body: int = 0
    content_type: str = ""
    """The body's type, if the headers name none."""


def read_endpoint_request(fields: RawObject, task_type: str) -> EndpointRequest:
    """Read the members of a native call. Raise ApiError(400)."""
    url, endpoint = read_text(fields, "url"), read_text(fields, "endpoint")
    if url is None and endpoint is None:
        raise bad_request("url is missing: the URL that is called (or name an endpoint)", "url")
    body, encoded, size, kind = _body(fields)
    # the method of a permit is its holder's to choose
    usual = "" if task_type == PERMIT else "GET" if body is encoded is None else "POST"
    wanted = EndpointRequest(
        url,
        (read_text(fields, "method") or usual).upper(),
        endpoint,
        urlencode(list(_pairs(fields, "query"))),
        tuple(_pairs(fields, "headers")),
        body,
        encoded,
        size,
        kind,
    )
    if task_type == PERMIT and (wanted.headers or body is not None or encoded is not None):
        raise bad_request(
            "A permit is for a URL and a method: headers and body are the caller's to send", "body"
        )
    return wanted


def find_endpoint(
    current: ActiveConfig, caller: Caller, wanted: EndpointRequest, task_type: str
) -> tuple[Endpoint, Target]:
    """Return the endpoint, and its target. Raise ApiError: 404 also where this caller may not use it."""
    endpoints = current.endpoints
    url, named = wanted.url, None
    try:
        if wanted.endpoint is not None:
            named = endpoints.named(wanted.endpoint)
            if named is None or not _may_use(caller, named):
                raise NoEndpoint(f"There is no endpoint {wanted.endpoint[:64]!r} that this key may use")
            if url is None:
                if "*" in named.pattern.segments and task_type == HTTP:
                    raise bad_request(
                        f"url is missing: the endpoint {named.name} is for {named.pattern.text}", "url"
                    )
                url = named.pattern.text
        assert url is not None
        if wanted.query:
            url += ("&" if "?" in url else "?") + wanted.query
        if named is None:
            found, target = endpoints.find(url, wanted.method)
        else:
            found, target = named, endpoints.check(named, url, wanted.method)
        if not _may_use(caller, found):
            raise NoEndpoint(NONE)
    except BadUrl as error:
        raise bad_request(str(error), "url") from None
    except NoEndpoint as error:
        raise ApiError(404, "ENDPOINT_NOT_FOUND", str(error), param="url") from None
    except WrongMethod as error:
        if not any(_may_use(caller, one) for one in error.endpoints):
            raise ApiError(404, "ENDPOINT_NOT_FOUND", NONE, param="url") from None
        raise bad_request(str(error), "method") from None
    return found, target


def _may_use(caller: Caller, endpoint: Endpoint) -> bool:
    """Return whether the caller's key or token covers an endpoint; to others it does not exist."""
    return caller.may_use(endpoint.model) and endpoint.may_use(caller.key_id, caller.tier)


def endpoint_task(
    current: ActiveConfig,
    caller: Caller,
    wanted: EndpointRequest,
    task_type: str,
    options: Options,
    *,
    task_id: str,
    subject: str,
    part: Part,
) -> TaskSpec:
    """Return a task as the scheduler takes it. Raise ApiError.

    `subject`: as `ActiveConfig.plan` takes it; `part`: see `Gateway.part`.
    """
    endpoint, target = find_endpoint(current, caller, wanted, task_type)
    if wanted.bytes_of_body > endpoint.max_body_bytes:
        sentence = f"The body may have {endpoint.max_body_bytes} bytes at this endpoint"
        raise ApiError(413, "BODY_TOO_LARGE", sentence, param="body")
    try:
        headers = passed_headers(wanted.headers, endpoint.headers)
    except BadHeader as error:
        raise bad_request(str(error), "headers") from None
    if wanted.content_type and all(name != "content-type" for name, _ in headers):
        headers.append(("content-type", wanted.content_type))
    payload = payload_of(endpoint, target, wanted.method, headers, wanted.body, wanted.encoded)
    plan = current.plan(caller, endpoint.model, lambda: False, subject)
    task = TaskBuilder(current.settings, caller, task_id, task_type, options).task(plan, b"{}", {})
    if task_type == PERMIT:
        if not current.settings.has("permits"):
            raise bad_request(
                "This gateway has permits disabled; the type `http` lets it make the request", "type"
            )
        task.extras["permit"] = part(Gate).permit(task_id, endpoint, target.url)._asdict()
    for spec in filter(None, (task, task.downgrade)):
        _settle(spec, endpoint, wanted.method, options, payload, current.settings.archive_ttl_ms)
    return task


def _settle(
    task: TaskSpec, endpoint: Endpoint, method: str, options: Options, payload: bytes, archive_ms: int
) -> None:
    """Apply the endpoint's settings to a task. It has no tokens."""
    task.payload = payload
    task.estimated_input = 0
    task.max_output, task.answers = 1, 1
    for name in ("max_input", "schema", "repair"):
        task.extras.pop(name, None)
    if task.task_type == HTTP:
        task.run_ms = endpoint.timeout_ms + RUN_MARGIN_MS
        task.max_tries = endpoint.max_tries(method)
    if options.wait:
        return
    if not task.timeout_ms:
        task.wait_ms = MAX_WAIT_MS
    if options.result_ttl_ms is None:
        task.keep_ms = KEEP_MS
    task.extras |= {"keep_after_read": AFTER_READ_MS, "archive": archive_ms}


def prepare(gateway: Gateway, call: NativeCall) -> Awaitable[NativeTask] | None:
    """See `Attached`."""
    task_type = value_of(call.fields, "type")
    if task_type not in (HTTP, PERMIT) or kind_of(call.fields.get("template") or b""):
        return None
    return _prepare(gateway, call, task_type)


async def _prepare(gateway: Gateway, call: NativeCall, task_type: str) -> NativeTask:
    fields = call.fields
    for member in fields:
        if member not in MEMBERS:
            hint = suggestion(member, MEMBERS)
            raise bad_request(f"A task of type {task_type} has no {member[:100]!r}{hint}", member)
    size = sum(memoryview(fields[name]).nbytes for name in ("body", "bodyBase64") if name in fields)
    target = await gateway.bodies.run(size, read_endpoint_request, fields, task_type)
    gateway.calls.name(call.request, call.caller)
    asynchronous, stream = read_flag(fields, "async"), read_flag(fields, "stream")
    permit = task_type == PERMIT  # its client does not wait for the end, but polls or reads the stream
    options = read_options(fields, wait=not asynchronous and not permit, stream=stream)
    if permit and stream and not asynchronous and options.on_disconnect is None:
        options.on_disconnect = "cancel"
    task = endpoint_task(
        *(gateway.current, call.caller, target, task_type, options),
        task_id=call.task_id,
        subject=call.subject,
        part=gateway.part,
    )
    if asynchronous or (permit and not stream):
        return NativeTask(task, AnswerMode.LATER)
    return NativeTask(task, AnswerMode.STREAM if stream else AnswerMode.WAIT)


# ---- members ----------


def read_text(fields: RawObject, name: str) -> str | None:
    """Return a short text; None: it is not given. Raise ApiError(400)."""
    value = value_of(fields, name)
    if value is None:
        return None
    if not isinstance(value, str):
        what = "is too long" if value is OVERSIZED else "must be a string"
        raise bad_request(f"{name} {what}", name)
    return value


MAX_OBJECT = 64 * 1024
"""Bytes of headers, or of a query."""


def _pairs(fields: RawObject, name: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of `headers` or `query`: `{"name": "value"}`, or with a list of values; or `[["name", "value"]]`."""
    raw = fields.get(name)
    if raw is None or not kind_of(raw):
        return
    if memoryview(raw).nbytes > MAX_OBJECT:
        raise bad_request(f"{name} may have {MAX_OBJECT} bytes", name)
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise bad_request(f"{name} cannot be read", name) from None
    for pair in value.items() if isinstance(value, dict) else value if isinstance(value, list) else [None]:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise bad_request(f'{name} must be an object such as {{"name": "value"}}', name)
        for one in pair[1] if isinstance(pair[1], list) else [pair[1]]:
            if not isinstance(one, bool | str | int | float):
                raise bad_request(f"{name}: the value of {pair[0][:40]!r} must be a text or a number", name)
            yield pair[0], str(one).lower() if isinstance(one, bool) else str(one)


def _body(fields: RawObject) -> tuple[bytes | None, bytes | None, int, str]:
    """Return the JSON of the body's text, or that of its base64; how many bytes it has; its type, if the caller names none."""
    raw, encoded = fields.get("body"), fields.get("bodyBase64")
    if encoded is not None and kind_of(encoded):
        if raw is not None and kind_of(raw):
            raise bad_request("body and bodyBase64 cannot both be given", "body")
        return None, *_base64(bytes(encoded)), BYTES_TYPE
    if raw is None or not kind_of(raw):
        return None, None, 0, ""
    text = bytes(raw).strip()
    if kind_of(raw) != '"':  # any other JSON is sent as it came
        return msgspec.json.encode(text.decode()), None, len(text), JSON_TYPE
    try:
        return text, None, len(msgspec.json.decode(text, type=str).encode()), TEXT_TYPE
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise bad_request("body holds a character that is none", "body") from None


def read_body(fields: RawObject) -> tuple[bytes | None, int]:
    """Return the JSON of a body's text, and how many bytes it has; an empty one is none. Raise ApiError(400)."""
    text, _, size, _ = _body(fields)
    return (text, size) if size else (None, 0)


def _base64(encoded: bytes) -> tuple[bytes, int]:
    try:
        text = msgspec.json.decode(encoded, type=str)
        size = len(base64.b64decode(text, validate=True))
    except (msgspec.DecodeError, binascii.Error, ValueError):
        raise bad_request("bodyBase64 must be base64 (RFC 4648)", "bodyBase64") from None
    return msgspec.json.encode(text), size
