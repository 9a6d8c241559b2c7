"""Why a call failed: our own shape, and OpenAI's."""

from pydantic import BaseModel, Field, JsonValue

from fairlane.gateway.api.models.base import Answer, Ms


class NativeError(Answer):
    """Why a call failed. `code` names the cause for programs, `error` is a sentence for people."""

    error: str
    code: str
    family: str = Field("", description="of a task that failed: what is to be done, a word for several codes")
    model: str = Field("", description="with NO_WORKER: the model that nobody runs")
    task_id: str = ""
    retry_after_ms: Ms = 0
    why: str = Field("", description="for operators: what is wrong with Redis or the database")
    fields: dict[str, str] = Field({}, description="for operators: setting -> what is wrong with it")
    rate_limited: bool = Field(False, description="with RATE_LIMITED: true")
    retry_after: int = Field(0, description="with RATE_LIMITED: seconds until it would be accepted")
    failed_stage: str = Field("", description="of a chain that failed: in which stage")
    results: dict[str, JsonValue] = Field(
        {}, description="of a chain that failed: the results of its stages so far"
    )
    needed: float = Field(0, description="with INSUFFICIENT_QUOTA: credits that the task may cost")
    available: float = Field(0, description="and that are left")


class OpenAIErrorBody(BaseModel):
    """Four members, as OpenAI has them."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """Why a call failed, in OpenAI's shape."""

    error: OpenAIErrorBody
