"""The calls of the proxy in front of an endpoint."""

from typing import Annotated, Any

from fastapi import Header, Path

from fairlane.gateway.access import Access
from fairlane.gateway.api import permits
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.hot.describing import Text
from fairlane.gateway.api.models.permits import LeftOff, LetIn
from fairlane.gateway.api.models.refusals import NativeError

ENDPOINT = {"endpoint": Annotated[str, Path(description="the endpoint that the proxy stands in front of")]}
SHOWN = {
    "permit": Annotated[Text, Header(alias="X-Fairlane-Permit", description="what the event `permit` held")],
    "task": Annotated[Text, Header(alias="X-Task-Id", description="the task of the permit")],
}


def _check(path: str, parameters: dict[str, Any], says: str) -> HotRoute:
    refused = refusals(*((403, 404, 503) if "endpoint" in parameters else (400, 403, 503)))
    refused[403]["description"] = "`code`: PERMIT_NEEDED, PERMIT_INVALID, PERMIT_USED, PERMIT_EXPIRED"
    return HotRoute(
        *("GET", path, permits.check, Access.OPEN),
        any_method=True,
        parameters=SHOWN | parameters,
        description=f"May this request pass? Asked by the proxy in front of an endpoint, by any method. {says}",
        response_model=LetIn,
        responses=refused,
        tags=["permits"],
    )


ROUTES = (
    _check(
        "/api/permit/check", {}, "The endpoint is found by the URL that the proxy tells (X-Original-URL)."
    ),
    _check("/api/permit/check/{endpoint}", ENDPOINT, "Yes is said once for each permit."),
    _check(
        "/api/permit/check/{endpoint}/{original:path}",
        {
            **ENDPOINT,
            "original": Annotated[str, Path(description="the path of the request, which is not looked at")],
        },
        "For proxies that put the path of the request behind.",
    ),
    HotRoute(
        *("POST", "/api/permit/done", permits.done, Access.OPEN),
        any_method=True,
        parameters={
            "receipt": Annotated[
                Text, Header(alias="X-Fairlane-Receipt", description="from the check call's answer")
            ]
        },
        description="What was let in has ended: its place is free. Told by the proxy, or by the server behind it.",
        response_model=LeftOff,
        responses=refusals(403, 503)
        | {403: {"model": NativeError, "description": "`code`: RECEIPT_INVALID"}},
        tags=["permits"],
    ),
)
