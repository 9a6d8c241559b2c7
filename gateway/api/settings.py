"""The operators' call for the effective settings and their sources."""

from typing import Annotated

from fastapi import Query, Response

from fairlane.gateway.api.dependencies import OperatorDep, answer, described, keyed_router
from fairlane.gateway.api.operator_schemas import Settings
from fairlane.gateway.api.queries import Filter

router = keyed_router("operators")


@router.get("/api/admin/settings", **described("admin.settings", "List settings", Settings))
async def settings(
    operator: OperatorDep, name: Filter = "", changed: Annotated[bool, Query()] = False
) -> Response:
    """Every setting of the replica that answers: its value, default, source, since when, and by whom it was changed.

    `name` is a part of their names, in small or large letters. With `changed` those alone that differ from their defaults, or
    were changed while running. Secrets are `(set)` or null; URLs come without user, password and query.
    """
    return answer(await operator.settings.read(name, changed=changed))
