"""The web pages and their files, and the OpenAPI document."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as Framed

from fairlane.gateway.access import Access
from fairlane.gateway.api.dependencies import RequestDep, answer, described, failed
from fairlane.gateway.api.schemas import OBJECT, Error
from fairlane.gateway.errors import ApiError
from fairlane.web.pages import PAGES, STATIC, TYPES, response_to

router = APIRouter(tags=["pages"], responses=failed(Error))
FILES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind.partition(";")[0]: {"schema": {"type": "string"}} for kind in TYPES.values()}},
    304: {},
}
STATIC_FILES = STATIC + "{file:path}"
DESCRIPTIONS = {
    "/": ("playground", "Get the playground"),
    "/dashboard": ("dashboard", "Get the dashboard"),
    "/docs": ("docs", "Get the API reference, drawn from `/openapi.json`"),
    "/favicon.ico": ("favicon", "Get the icon"),
    STATIC_FILES: ("files", "Get a file of the pages"),
}


async def page(request: RequestDep) -> Response:
    """Return a page or a file of the pages."""
    found = response_to(
        request.path, request.header(b"accept-encoding") or "", request.header(b"if-none-match") or ""
    )
    if found is None:
        raise ApiError(404, "NOT_FOUND", "There is no such page")
    return found


for _path in (*PAGES, STATIC_FILES):
    for _method in ("GET", "HEAD"):
        router.add_api_route(
            _path,
            page,
            methods=[_method],
            summary=DESCRIPTIONS[_path][1],
            description=DESCRIPTIONS[_path][1],
            operation_id=f"pages.{DESCRIPTIONS[_path][0]}{'_head' if _method == 'HEAD' else ''}",
            response_class=Response,
            responses=FILES,
        )


@router.get("/openapi.json", **described("pages.openapi", "Get this document", OBJECT))
async def document(request: Framed) -> Response:
    """This document."""
    return answer(await request.app.document())


ROUTERS = ((router, Access.PAGE),)
