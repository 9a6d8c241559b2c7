"""The web pages and their files, and the document of all calls."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as Framed

from fairlane.gateway.api.framing import TheRequest, answer, refusals
from fairlane.gateway.errors import ApiError
from fairlane.web.pages import PAGES, TYPES

router = APIRouter(tags=["pages"], responses=refusals(403, 404))
FILES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            kind.decode().partition(";")[0]: {"schema": {"type": "string"}} for kind in TYPES.values()
        }
    },
    304: {},
}
STATIC_FILES = "/static/{file:path}"
SAYS = {
    "/": "The playground: a web page to try the gateway.",
    "/dashboard": "The dashboard: a web page for operators.",
    "/docs": "The web page of all calls, drawn from `/openapi.json`.",
    "/favicon.ico": "The icon of the pages.",
    STATIC_FILES: "A file of the pages. Browsers ask each time whether theirs is still the same (ETag, 304).",
}


async def page(framed: Framed, request: TheRequest) -> Response:
    """A page, or a file of one."""
    found = framed.app.gateway.pages.answer(
        request.path, request.header(b"accept-encoding"), request.header(b"if-none-match")
    )
    if found is None:
        raise ApiError(404, "NOT_FOUND", "There is no such page")
    headers = {name.decode(): value.decode() for name, value in found.headers}
    return Response(found.body, found.status, headers)


for _path in (*PAGES, STATIC_FILES):
    for _method in ("GET", "HEAD"):
        router.add_api_route(
            _path,
            page,
            methods=[_method],
            description=SAYS[_path],
            operation_id=f"{_path.partition('{')[0].strip('/') or 'playground'}_{_method.lower()}",
            response_class=Response,
            responses=FILES,
        )


@router.get("/openapi.json", response_model=dict[str, Any])
async def document(request: Framed) -> Response:
    """This document."""
    return answer(await request.app.document(), {"cache-control": "no-cache"})
