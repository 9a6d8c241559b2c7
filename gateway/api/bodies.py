"""The JSON bodies of the hot calls."""

from fairlane.gateway.calls.bodies import RawObject
from fairlane.gateway.calls.http import Request
from fairlane.gateway.tasks.tasks import Tasks


async def read_json(tasks: Tasks, request: Request, most: int | None = None) -> tuple[bytes, RawObject]:
    """Return a body of at most `most` bytes (None: the limit of a task), and its members. Raise ApiError and ClientGone."""
    limit = tasks.settings.max_body_bytes if most is None else most
    body = await request.json_body(limit)
    return body, await tasks.bodies.parse(body)
