"""/v1/files: upload, list, read and delete files. Official SDKs work unmodified."""

import asyncio
import contextlib
import re
from typing import Any

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.api.raw_routes import BINARY, ORDER, RawRoute, form, header, page_size, query
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import AnswerCut, ApiError, Headers, bad_request
from fairlane.gateway.files.files import MAX_FILE_BYTES, Files
from fairlane.gateway.files.rows import FileRow, disposition, is_file_id
from fairlane.gateway.http.multipart import FRAMING_BYTES, Form, Part
from fairlane.gateway.http.paging import read_limit, read_newest_first
from fairlane.gateway.http.request import JSON, DisconnectWatcher, Request
from fairlane.gateway.openai.requests import MAX_EXPIRY_S, MIN_EXPIRY_S

PURPOSES = ("batch", "user_data", "assistants", "fine-tune", "vision", "evals")
"""The purposes of uploads. Only `batch` makes a difference here."""
MAX_OF_PAGE = 10_000
"""Files in a page, the default and the maximum: as OpenAI's."""
MAX_LISTED = 500
"""Files that are encoded before other work gets a turn."""
FIELD_CHARS = 200
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = frozenset({"purpose", _ANCHOR, _SECONDS})
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def create(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /v1/files."""
    files, owner = tasks.part(Files), caller.owner
    if not tasks.settings.files.max_bytes:
        raise ApiError(404, "FILES_OFF", "This gateway takes no files (files.max_size: 0)")
    length = request.header(b"content-length")
    size = int(length) if length is not None and length.isdigit() and len(length) < 19 else 0
    form = Form(request, MAX_FILE_BYTES + FRAMING_BYTES)
    fields: dict[str, str] = {}
    row: FileRow | None = None
    async with contextlib.AsyncExitStack() as stack:
        arriving, name = None, ""
        async for part in form:
            if part.name != "file":
                fields[part.name] = await _field(part, fields)
                continue
            if arriving is not None:
                raise bad_request("The form has two files: send one at a time", "file")
            if part.filename is None:
                raise bad_request(
                    "file must be a file: its part of the form has no filename (curl: -F file=@PATH)", "file"
                )
            name = part.filename
            arriving = await stack.enter_async_context(files.arriving(owner, size=size))
            async for piece in part.pieces():
                await arriving.write(piece)
        if arriving is None:
            raise bad_request("The form has no file: it is the part `file`", "file")
        if "purpose" not in fields:
            whose = " This is OpenAI's Files API; Anthropic's is not here." if request.anthropic else ""
            raise bad_request(f"purpose is needed: {', '.join(PURPOSES)}.{whose}", "purpose")
        row = await arriving.finish(name, fields["purpose"], _expires_s(fields))
    await _answer(request, file_object(row))


async def listed(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/files."""
    files, owner = tasks.part(Files), caller.owner
    request.check_query("limit", "after", "order", "purpose")
    most = read_limit(request.query("limit"), MAX_OF_PAGE, MAX_OF_PAGE)
    descending = read_newest_first(request.query("order") or None)
    after = request.query("after")
    if after is not None and not is_file_id(after):
        raise bad_request("after must be the id of a file", "after")
    purpose = request.query("purpose")
    if purpose is not None and "\0" in purpose:
        raise bad_request("purpose must be the name of one", "purpose")
    rows = await files.list(owner, purpose=purpose, after=after, descending=descending, limit=most + 1)
    shown, parts = rows[:most], list[bytes]()
    for at in range(0, len(shown), MAX_LISTED):
        parts.append(msgspec.json.encode([file_object(row) for row in shown[at : at + MAX_LISTED]])[1:-1])
        await asyncio.sleep(0)
    await _answer(
        request,
        {
            "object": "list",
            "data": msgspec.Raw(b"[%b]" % b",".join(parts)),
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": len(rows) > most,
        },
    )


async def retrieve(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/files/{file_id}."""
    row = await tasks.part(Files).row(_visible(caller), request.path_params["file_id"])
    await _answer(request, file_object(row))


async def delete(tasks: Tasks, caller: Caller, request: Request) -> None:
    """DELETE /v1/files/{file_id}."""
    file_id = request.path_params["file_id"]
    await tasks.part(Files).delete(_visible(caller), file_id)
    await _answer(request, {"id": file_id, "object": "file", "deleted": True})


async def content(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/files/{file_id}/content: all of it, or a part (`Range`)."""
    files = tasks.part(Files)
    row = await files.row(_visible(caller), request.path_params["file_id"])
    start, end, status, headers = _part_of(row, request)
    with contextlib.closing(DisconnectWatcher(request, lambda: None)) as departure:
        async with contextlib.aclosing(files.pieces(row, start, end)) as pieces:
            piece = await anext(pieces, b"")  # a failure of the first piece is still answered with a status
            await request.start(status, [*headers, (b"content-length", b"%d" % max(end - start, 0))])
            while piece:
                if departure.gone:
                    raise request.gone()
                await request.send({"type": "http.response.body", "body": piece, "more_body": True})
                try:
                    piece = await anext(pieces, b"")
                except ApiError:  # which is logged already
                    raise AnswerCut from None
        await request.send({"type": "http.response.body", "body": b""})


def file_object(row: FileRow) -> dict[str, Any]:
    """Return OpenAI's object of a file."""
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.bytes,
        "created_at": row.created // 1000,
        "expires_at": None if row.expires is None else row.expires // 1000,
        "filename": row.name,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def _visible(caller: Caller) -> Owner | None:
    """Return the owner whose files a caller may see by id: the caller, or all (None) for an admin's key."""
    return None if caller.sees_all else caller.owner


async def _field(part: Part, fields: dict[str, str]) -> str:
    """Return the value of a field of the form. Raise ApiError(400) for an invalid one, before more of the form is read."""
    name = part.name[:FIELD_CHARS]
    if name not in _FIELDS:
        raise bad_request(f"There is no field {name!r} of a file: file, purpose, {_ANCHOR}, {_SECONDS}", name)
    if part.filename is not None:
        raise bad_request(f"{name} must not be a file", name)
    if name in fields:
        raise bad_request(f"{name} is given twice", name)
    value = await part.text(FIELD_CHARS)
    if name == "purpose" and value not in PURPOSES:
        raise bad_request(f"purpose must be one of {', '.join(PURPOSES)}", name)
    if name == _ANCHOR and value != "created_at":
        raise bad_request("expires_after.anchor must be created_at", name)
    if name == _SECONDS and not (
        value.isascii() and value.isdigit() and len(value) < 9 and MIN_EXPIRY_S <= int(value) <= MAX_EXPIRY_S
    ):
        raise bad_request(
            f"expires_after.seconds must be a whole number from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}", name
        )
    return value


def _expires_s(fields: dict[str, str]) -> int | None:
    if _SECONDS in fields and _ANCHOR in fields:
        return int(fields[_SECONDS])
    if _SECONDS in fields or _ANCHOR in fields:
        raise bad_request("expires_after needs both anchor and seconds", "expires_after")
    return None


def _part_of(row: FileRow, request: Request) -> tuple[int, int, int, Headers]:
    """Return start and end of the requested range, and the status and headers of the answer. Raise ApiError(416)."""
    headers: Headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", disposition(row.name)),
        (b"accept-ranges", b"bytes"),
    ]
    match = _RANGE.fullmatch(request.header(b"range") or "")
    if match is None or match[0] == "bytes=-":  # no range, or an unsupported kind, which may be ignored
        return 0, row.bytes, 200, headers
    if match[1]:
        start, end = int(match[1]), min(int(match[2]) + 1 if match[2] else row.bytes, row.bytes)
    else:
        start, end = max(row.bytes - int(match[2]), 0), row.bytes
    if start >= end:
        none = [(b"content-range", b"bytes */%d" % row.bytes)]
        raise ApiError(416, "RANGE_NOT_SATISFIABLE", f"The file has {row.bytes} bytes", headers=none)
    headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, row.bytes)))
    return start, end, 206, headers


async def _answer(request: Request, body: dict[str, Any]) -> None:
    encoded = msgspec.json.encode(body)
    await request.respond(200, encoded, [JSON])


_EXPIRY = {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S}
_UPLOAD = {
    "type": "object",
    "required": ["file", "purpose"],
    "additionalProperties": False,
    "properties": {
        "file": BINARY,
        "purpose": {"enum": [*PURPOSES]},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": _EXPIRY,
    },
}
_CONTENT = {"application/octet-stream": {"schema": BINARY}}

ROUTES = (
    RawRoute(*("POST", "/v1/files", create, "files.create", "Upload a file"), body=form(_UPLOAD)),
    RawRoute(
        *("GET", "/v1/files", listed, "files.list", "List files"),
        parameters=(
            page_size(MAX_OF_PAGE),
            query("after", "the page begins after this id"),
            query("order", "by time; default: desc", ORDER),
            query("purpose", "only files of this purpose"),
        ),
    ),
    RawRoute(*("GET", "/v1/files/{file_id}", retrieve, "files.get", "Get a file")),
    RawRoute(
        *("GET", "/v1/files/{file_id}/content", content, "files.content", "Get the content of a file"),
        parameters=(header("range", "bytes=FROM-TO"),),
        answer=_CONTENT,
        answers={"206": {"description": "With `Range`", "content": _CONTENT}},
    ),
    RawRoute(*("DELETE", "/v1/files/{file_id}", delete, "files.delete", "Delete a file")),
)
