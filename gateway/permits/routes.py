"""The calls of proxies in front of endpoints: check the permit of a request, and report its end.

All methods have the same answer, as proxies use the method of the request that they check.
"""

from typing import Literal

from fairlane.gateway.access import Access
from fairlane.gateway.api.raw_routes import RawRoute, header
from fairlane.gateway.api.schemas import Schema, json
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.endpoints.endpoints import Endpoint, EndpointError, Endpoints
from fairlane.gateway.errors import ApiError, bad_request, native_answer
from fairlane.gateway.http.request import JSON, Request
from fairlane.gateway.permits.gate import Gate, PermitRejected, permit_needed
from fairlane.queues.tasks import PermitEnd


class LetIn(Schema, kw_only=True):
    """The request may pass; the header `X-Fairlane-Receipt` is the receipt for reporting its end."""

    task_id: str


class LeftOff(Schema, kw_only=True):
    """`ended`: this call ended it; `over`: it had ended or expired before."""

    status: Literal["ended", "over"]


PERMIT, RECEIPT, TASK = b"x-fairlane-permit", b"x-fairlane-receipt", b"x-task-id"


async def check(tasks: Tasks, caller: None, request: Request) -> None:  # noqa: ARG001
    """/api/permit/check/{endpoint}, or without the endpoint if the proxy sends the original URL."""
    endpoint = request.path_params.get("endpoint")
    try:
        if endpoint is None:
            endpoint = _asked_for(request, tasks.current.endpoints).name
        task_id, receipt = await tasks.part(Gate).admit(
            endpoint, request.header(PERMIT), request.header(TASK)
        )
    except PermitRejected as error:  # some proxies forward headers of a rejection, and not its body
        error.headers = [(b"x-fairlane-refusal", native_answer(error).body)]
        raise
    headers = [JSON, (TASK, task_id.encode()), (RECEIPT, receipt.encode())]
    await request.respond(200, b'{"taskId":"%b"}' % task_id.encode(), headers)


async def done(tasks: Tasks, caller: None, request: Request) -> None:  # noqa: ARG001
    """/api/permit/done: the request of this receipt has ended."""
    left = await tasks.part(Gate).leave(request.header(RECEIPT) or "")
    if left in (None, PermitEnd.UNUSED, PermitEnd.UNKNOWN):
        text = "X-Fairlane-Receipt must be the receipt of a check call, for a task that still exists"
        raise ApiError(403, "RECEIPT_INVALID", text)
    await request.respond(200, b'{"status":"%b"}' % left.encode(), [JSON])


def _asked_for(request: Request, endpoints: Endpoints) -> Endpoint:
    """Return the endpoint of the URL that the proxy sends. Headers with two URLs must name the same endpoint,
    as one can be from the client."""
    header = request.header
    urls = [url] if (url := header(b"x-original-url")) else []
    parts = [header(b"x-forwarded-" + name) for name in (b"proto", b"host", b"uri")]
    if all(parts):
        urls.append("{}://{}{}".format(*parts))
    if not urls:
        raise bad_request(
            "The proxy must name the endpoint: /api/permit/check/{endpoint}, or the header X-Original-URL"
        )
    method = header(b"x-original-method") or header(b"x-forwarded-method") or request.method
    try:
        meant = [endpoints.find(url, method)[0] for url in urls]
    except EndpointError:
        raise permit_needed() from None
    if any(one.name != meant[0].name for one in meant):
        raise permit_needed()
    return meant[0]


_PERMIT = (
    header("x-fairlane-permit", "the permit, from the event `permit`"),
    header("x-task-id", "the task of the permit"),
)


def _check(path: str, id_: str, description: str) -> RawRoute:
    return RawRoute(
        *("GET", path, check, id_, "Check a permit"),
        access=Access.OPEN,
        any_method=True,
        tag="permits",
        description=f"The proxy in front of an endpoint asks whether a request may pass, with any method. {description}",
        parameters=_PERMIT,
        answer=json(LetIn),
    )


ROUTES = (
    _check("/api/permit/check", "permits.check_by_url", "`X-Original-URL` names the endpoint."),
    _check("/api/permit/check/{endpoint}", "permits.check", "A permit passes once."),
    _check(
        "/api/permit/check/{endpoint}/{original:path}",
        "permits.check_with_path",
        "For proxies that append the path.",
    ),
    RawRoute(
        *("POST", "/api/permit/done", done, "permits.done", "Report the end of a request"),
        description="The proxy, or the server behind it, reports that the request has ended; its slot is free.",
        access=Access.OPEN,
        any_method=True,
        tag="permits",
        answer=json(LeftOff),
        parameters=(header("x-fairlane-receipt", "from the answer of the check"),),
    ),
)
