"""What all models of requests and answers are made of."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

REF = "#/components/schemas/{model}"
"""How the document names its parts."""
Ms = int
"""Milliseconds; of a time, since 1970."""


class Answer(BaseModel):
    """An answer; members may be added."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow")


class Asked(BaseModel):
    """A request; what it does not name is the worker's."""

    model_config = ConfigDict(extra="allow")


Left = SkipJsonSchema[None]
"""Of what is not given: no null can stand in a header or a query."""

DATABASE_AWAY: Any = Field(
    description="why the SQL database could not be asked: then it is what the gateway and Redis know; null: it was"
)

Model = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Positive = Annotated[float, Field(gt=0)]
Priority = Annotated[int, Field(ge=0, le=5)]
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[!-~]+$")]


class IdempotencyHeader(BaseModel):
    """What makes a submission safe to repeat."""

    idempotency_key: IdempotencyKey | Left = Field(
        None, description="the same key and body are the same task, which is joined or replayed"
    )


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The document's part on a JSON body that is read by hand. Models within it stand where they are used."""
    schema = model.model_json_schema(ref_template="{model}")
    parts = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _with_parts(schema, parts)}},
        }
    }


def _with_parts(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_with_parts(one, parts) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**parts[node["$ref"]], **{name: value for name, value in node.items() if name != "$ref"}}
    return {name: _with_parts(value, parts) for name, value in node.items()}
