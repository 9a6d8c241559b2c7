"""The operators' call for the effective settings and their sources."""

from typing import Annotated

from fastapi import Query, Response

from fairlane.gateway.api.dependencies import OperatorDep, answer, described, keyed_router
from fairlane.gateway.api.queries import Filter
from fairlane.gateway.api.schemas import OBJECT

router = keyed_router("operators")


@router.get("/api/admin/settings", **described("admin.settings.list", "List settings", OBJECT))
async def settings(
    operator: OperatorDep, name: Filter = "", changed: Annotated[bool, Query()] = False
) -> Response:
    """Return every setting of this replica: its value, default and source, and the time and author of its change.

    `name` is a part of their names, in any case. With `changed`, only those that differ from their defaults or were changed at
    run time. Secrets are `(set)` or null; URLs are without user, password and query.
    """
    return answer(await operator.settings.read(name, changed=changed))
