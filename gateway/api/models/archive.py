"""Tasks of the archive."""

from typing import Literal

from pydantic import Field, JsonValue

from fairlane.gateway.api.models.base import Answer, Ms


class ArchivedTask(Answer):
    task_id: str
    key: str
    user: str
    status: Literal["completed", "failed", "cancelled"]
    ended_at: Ms
    answer: dict[str, JsonValue] = Field(description="as GET /api/task/{taskId} told it")
    request: JsonValue = Field(description="null: it was not kept")
