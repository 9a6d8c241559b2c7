"""The JSON bodies of the hot calls."""

from fairlane.gateway.calls.bodies import RawObject
from fairlane.gateway.calls.http import Request
from fairlane.gateway.tasks.tasks import Tasks


async def read_json(tasks: Tasks, request: Request, most: int | None = None) -> tuple[bytes, RawObject]:
    """A body, of `most` bytes (None: as many as a task may have), and the members of the object that it must be. Raises ApiError
    and ClientGone."""
    limit = tasks.settings.max_body_bytes if most is None else most
    body = await request.json_body(limit)
    return body, await tasks.bodies.parse(body)
