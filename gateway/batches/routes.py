"""Batches: OpenAI's calls, and the operators' own."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from fairlane.gateway.access import Access
from fairlane.gateway.admin.bodies import read_body
from fairlane.gateway.api.dependencies import (
    KEY,
    BodyDep,
    CallerDep,
    answer,
    described,
    failed,
    keyed_router,
    part,
)
from fairlane.gateway.api.schemas import OBJECT, Ms, OpenAIError, Schema, listed, says
from fairlane.gateway.batches.batches import Batches, NewBatch
from fairlane.gateway.batches.models import UNENDED, Status, admin_view, openai_object
from fairlane.gateway.errors import bad_request
from fairlane.gateway.usage.queries import Filter


class RequestCounts(Schema, kw_only=True):
    """The progress of a batch."""

    total: int
    completed: int
    failed: int


class WaitsFor(Schema, kw_only=True):
    """The reason why lines of a batch are not submitted now."""

    code: str
    models: Annotated[list[str], says("the models of these lines, up to ten; none: any")]


class AnyBatch(Schema, kw_only=True):
    """A batch, as shown to operators."""

    lines_waiting: Annotated[int, says("submitted, and in their queue")]
    lines_running: int
    waits_for: Annotated[list[WaitsFor], says("reasons why others are not submitted")]
    id: str
    key: str | None
    user: str
    tier: str
    status: Status
    endpoint: str
    model: str | None
    created_at: Ms
    began_at: Ms | None
    expires_at: Ms
    ended_at: Ms | None
    counts: RequestCounts
    replica: Annotated[str | None, says("the one that submits its lines")]
    error: Annotated[str | None, says("the first one")]
    error_line: Annotated[int | None, says("its line in the file")]
    error_param: Annotated[str | None, says("its member")]


UNENDED_WORD = "unended"
MAX_OF_PAGE = 100
After = Annotated[str, Query(max_length=64, pattern=r"^(batch_[0-9a-f]{1,32})?$")]

router = APIRouter(tags=["openai"], dependencies=[Depends(KEY)], responses=failed(OpenAIError))
operators = keyed_router("operators")


BatchesDep = Annotated[Batches, part(Batches)]


@router.post("/v1/batches", **described("batches.create", "Create a batch", OBJECT, body=NewBatch))
async def create(batches: BatchesDep, caller: CallerDep, body: BodyDep) -> Response:
    """Create a batch of the lines of a file. Each line is a request of /v1/chat/completions, /v1/completions, /v1/embeddings or
    /v1/responses with a `custom_id`. They run as tasks of the caller's batch queue, a limited number at a time.

    The file is checked after this call. If it is invalid, the batch has `failed`, and `errors` has the lines.
    """
    new = read_body(NewBatch, body)
    return answer(openai_object(await batches.create(caller, new)))


@router.get("/v1/batches", **described("batches.list", "List batches", OBJECT))
async def page(
    batches: BatchesDep,
    caller: CallerDep,
    after: After = "",
    limit: Annotated[int, Query(ge=1, le=MAX_OF_PAGE)] = 20,
) -> Response:
    """Return the caller's batches, newest first, after the id `after`."""
    found, more = await batches.page(caller.owner, after, limit)
    ids = [batch.id for batch in found]
    listed = {"object": "list", "data": [openai_object(batch) for batch in found]}
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return answer({**listed, **ends, "has_more": more})


@router.get("/v1/batches/{batch_id}", **described("batches.get", "Get a batch", OBJECT))
async def show(batches: BatchesDep, caller: CallerDep, batch_id: str) -> Response:
    """Return a batch."""
    return answer(openai_object(await batches.find(batch_id, caller.owner)))


@router.post("/v1/batches/{batch_id}/cancel", **described("batches.cancel", "Cancel a batch", OBJECT))
async def cancel(batches: BatchesDep, caller: CallerDep, batch_id: str) -> Response:
    """Cancel the waiting and running lines of a batch. Its files have the answers so far. A batch that has ended does not
    change."""
    return answer(openai_object(await batches.cancel(batch_id, caller.owner)))


@operators.get(
    "/api/admin/batches", **described("admin.batches.list", "List all batches", listed("batches", AnyBatch))
)
async def page_of_all(
    batches: BatchesDep,
    status: Annotated[str, Query(description=f"a status, or `{UNENDED_WORD}`")] = "",
    key: Filter = "",
    user: Filter = "",
    after: After = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Return the batches of all users, newest first. `next` is the `after` of the next page, null at the end."""
    statuses = UNENDED if status == UNENDED_WORD else (status,) if status else ()
    if status and status != UNENDED_WORD and status not in [*Status]:
        raise bad_request(f"status must be one of {', '.join(Status)}, or {UNENDED_WORD}", "status")
    found, more = await batches.page(None, after, limit, statuses=statuses, key_id=key, user=user)
    rows = [admin_view(batch) for batch in found]
    return answer({"batches": rows, "next": found[-1].id if more else None})


ROUTERS = ((router, Access.CALLER), (operators, Access.ADMIN))
