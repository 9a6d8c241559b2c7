"""The product's own OpenAPI document, with the names that a run uses in place of any name."""

import copy
import functools
from typing import Any, cast

from tests.hostile.cast import LAB, LAB_QUEUES, NO_BATCH, NOBODYS, NOBODYS_FILE, STREAMING, WORKING

from fairlane.gateway.app import App

Schema = dict[str, Any]
SHORT = 40
"""Characters of texts that are not worth more."""
TEXT: Schema = {"type": "string", "maxLength": SHORT}
MESSAGES: Schema = {
    "type": "array",
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {"role": {"enum": ["user", "system", "assistant"]}, "content": TEXT},
        "required": ["role", "content"],
    },
}
TEXTS: dict[str, Schema] = {
    "messages": MESSAGES,
    "prompt": TEXT,
    "input": TEXT,
    "type": {"enum": ["openaiLike", "resize"]},
    "payload": {"type": "object", "properties": {"messages": MESSAGES}, "maxProperties": 2},
}
"""Members of bodies, as the echo worker takes them."""


def application() -> App:
    """The application with no gateway in it: its calls and its document are the same."""
    return App(cast(Any, None))


@functools.cache
def whole() -> Schema:
    """The document. It takes a quarter of a second to make."""
    return application().openapi()


def narrowed(document: Schema, tasks: tuple[str, ...] = (NOBODYS,)) -> Schema:
    """The document for requests that shall find something: tasks, models, and the few queues and models that nobody uses and
    that may be paused. Texts and lists are short."""
    document = copy.deepcopy(document)
    known: dict[tuple[str, str], list[str]] = {
        ("/api/admin/queues/{name}", "name"): list(LAB_QUEUES),
        ("/api/admin/models/{name}", "name"): [LAB],
        ("/static/{file}", "file"): ["common/api.js", "common/base.css", "nothing"],
        ("/v1/models/{model}", "model"): list(WORKING),
        **{(f"/v1/files/{{file_id}}{rest}", "file_id"): [NOBODYS_FILE] for rest in ("", "/content")},
        ("/v1/files", "after"): [NOBODYS_FILE],
        ("/v1/files", "purpose"): ["batch"],
        ("/api/admin/overrides/{override_id}", "override_id"): ["nothing"],
        ("/api/admin/endpoints/{name}", "name"): ["nothing"],
        ("/api/admin/webhooks/{webhook_id}", "webhook_id"): ["nothing"],
        ("/v1/batches/{batch_id}", "batch_id"): [NO_BATCH],
        ("/v1/batches/{batch_id}/cancel", "batch_id"): [NO_BATCH],
        ("/api/admin/workers/{worker_id}/drain", "worker_id"): [f"{number:016x}" for number in range(9)],
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                name, schema = parameter["name"], parameter["schema"]
                if name == "response_id":
                    parameter["schema"] = {"type": "string", "enum": [f"resp_{task}" for task in tasks]}
                elif name in ("task_id", "taskId"):
                    parameter["schema"] = {"type": "string", "enum": list(tasks)}
                elif (path, name) in known:
                    parameter["schema"] = {"type": "string", "enum": known[path, name]}
                elif name == "x-fairlane-metadata":
                    parameter["schema"] = {"type": "string", "enum": ['{"a": 1}', "{}"]}
                else:
                    _shorten(schema)
                if name == "token":  # a ticket goes before a key, and any text is a wrong one
                    operation["parameters"] = [one for one in operation["parameters"] if one is not parameter]
    schemas = document["components"]["schemas"]
    for request in (
        *("ChatRequest", "CompletionRequest", "EmbeddingRequest", "NativeRequest", "TaskRequest"),
        *("MessagesRequest", "CountTokensRequest"),
    ):
        properties = schemas[request]["properties"]
        names = [STREAMING] if request == "EmbeddingRequest" else list(WORKING)
        properties["model"] = {"type": "string", "enum": names}
        properties.update({name: text for name, text in TEXTS.items() if name in properties})
        schemas[request]["maxProperties"] = len(properties) + 1
    return document


def _shorten(schema: Schema) -> None:
    for one in (schema, *schema.get("anyOf", ())):
        if one.get("type") == "string" and "enum" not in one and "pattern" not in one:
            one["maxLength"] = min(one.get("maxLength", SHORT), SHORT)
