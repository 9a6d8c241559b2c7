"""The request of a task to an endpoint: as it is stored, and as its worker gets it. Pure.

The caller's request is stored. The operator's settings of the endpoint (its own headers, which may hold secrets, limits,
networks) are added when the task is granted: so they are in no store and no log, and a change of them applies to waiting tasks.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from fairlane.gateway.endpoints.endpoints import Endpoint, EndpointError, Endpoints
from fairlane.workers.adapters.endpoints.headers import Header
from fairlane.workers.adapters.targets import Target


class _Request(msgspec.Struct):
    """A request as it is stored. A body is JSON text, which is passed on as it is."""

    endpoint: str
    method: str
    url: str
    headers: list[Header] = []
    body: Raw | UnsetType = UNSET
    bodyBase64: Raw | UnsetType = UNSET  # noqa: N815 - as the worker gets it


_decoder = msgspec.json.Decoder(_Request)
_OF_THE_BODY = frozenset({"content-type"})
"""The header that the gateway sets if the caller does not."""


def payload_of(
    endpoint: Endpoint,
    target: Target,
    method: str,
    headers: Sequence[Header] = (),
    body: bytes | None = None,
    encoded: bytes | None = None,
) -> bytes:
    """Return the payload of a task. `body`: the JSON of a text, `encoded`: that of base64; at most one of them."""
    request = _Request(endpoint.name, method, target.url, list(headers))
    if body is not None:
        request.body = Raw(body)
    elif encoded is not None:
        request.bodyBase64 = Raw(encoded)
    return msgspec.json.encode(request)


def worker_payload(endpoints: Endpoints, model: str, payload: bytes) -> bytes | None:
    """Return the payload for the worker, by the current endpoints; None: none of them serves this request any more."""
    endpoint = endpoints.of_model(model)
    if endpoint is None:
        return None
    try:
        request = _decoder.decode(payload)
        endpoints.check(endpoint, request.url, request.method)
    except (msgspec.DecodeError, EndpointError):
        return None
    passing = (endpoint.headers | _OF_THE_BODY) - {name for name, _ in endpoint.set_headers}
    request.headers = [header for header in request.headers if header[0] in passing]
    request.headers += endpoint.set_headers
    rules = {
        "pattern": endpoint.pattern.text,
        "timeoutMs": endpoint.timeout_ms,
        "maxResponseBytes": endpoint.max_body_bytes,
        "allowPrivate": endpoint.allow_private,
    }
    whole = msgspec.json.encode(request)
    return b'%b,"rules":%b}' % (whole[:-1], msgspec.json.encode(rules))
