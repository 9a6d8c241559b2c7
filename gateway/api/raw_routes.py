"""The raw ASGI calls, which bypass FastAPI, with their entries in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.access import Access
from fairlane.gateway.api import native, openai
from fairlane.gateway.api import schemas as s
from fairlane.gateway.api.schemas import OBJECT, REF, STRING, fields, json, ref
from fairlane.gateway.calls.openai import MAX_EXPIRY_S, MIN_EXPIRY_S
from fairlane.gateway.endpoints import queue_routes as submit_task_api
from fairlane.gateway.files import routes as files
from fairlane.gateway.media import routes as media
from fairlane.gateway.messages import routes as messages
from fairlane.gateway.permits import routes as permits
from fairlane.gateway.responses import routes as responses
from fairlane.gateway.responses import stored_routes as stored_responses
from fairlane.gateway.responses.items import MAX_OF_PAGE
from fairlane.gateway.settings import MODES

Json = dict[str, Any]


def sse(data: Json, *, event: bool = False) -> Json:
    """Return the content of a stream of server-sent events with this data."""
    named = {"event": STRING} if event else {}
    return {"text/event-stream": {"itemSchema": fields(**named, data=data)}}


TAGS = (
    ("/v1/messages", "anthropic", s.AnthropicError),
    ("/v1/", "openai", s.OpenAIError),
    ("/api/permit/", "permits", s.Error),
    ("/api/", "native", s.Error),
)
"""The beginning of a call's path, the part of the document, and the shape of errors."""


@dataclass(frozen=True, slots=True)
class RawRoute:
    """One call. `call(tasks, caller, request)` answers it; the other members are for the document.

    `answer` is the content of status 200, by media type, and `answers` has other statuses. `any_method`: the call answers all
    methods; the document has `method` alone.
    """

    method: str
    path: str
    call: Callable[..., Awaitable[None]]
    id: str
    summary: str
    description: str = ""
    access: Access = Access.CALLER
    submits: bool = False
    any_method: bool = False
    parameters: Sequence[Json] = ()
    body: Json | None = None
    answer: Json | None = None
    answers: Mapping[str, Json] | None = None
    error: Json | None = None

    def operation(self) -> Json:
        """Return the entry of the document."""
        tag, error = next((tag, error) for begin, tag, error in TAGS if self.path.startswith(begin))
        answers = {
            "200": {"description": "Success", "content": self.answer or json(OBJECT)},
            **(self.answers or {}),
            "default": {"description": "An error", "content": self.error or json(error)},
        }
        names = [part.partition("}")[0].partition(":")[0] for part in self.path.split("{")[1:]]
        in_path = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in names]
        return {
            "tags": [tag],
            "operationId": self.id,
            "summary": self.summary,
            "description": self.description or self.summary,
            "parameters": [*in_path, *self.parameters],
            **({"requestBody": {"required": True, "content": self.body}} if self.body else {}),
            "responses": answers,
            **({} if self.access is Access.OPEN else {"security": [{"key": []}]}),
        }


def _form(model: Any) -> Json:
    return {"multipart/form-data": {"schema": ref(model) if isinstance(model, type) else model}}


def _parameter(where: str, name: str, description: str, schema: Json = STRING) -> Json:
    return {"in": where, "name": name, "description": description, "schema": schema}


def _query(name: str, description: str, schema: Json = STRING) -> Json:
    return _parameter("query", name, description, schema)


def _header(name: str, description: str, schema: Json = STRING) -> Json:
    return _parameter("header", name, description, schema)


def _page(most: int) -> Json:
    return _query("limit", "rows of a page", {"type": "integer", "minimum": 1, "maximum": most})


_MS: Json = {"type": "number", "exclusiveMinimum": 0}
_BINARY: Json = {"type": "string", "format": "binary"}
_TEXT = {"text/plain": {"schema": STRING}}
_ORDER: Json = {"enum": ["asc", "desc"]}

IDEMPOTENCY_KEY = _header(
    "idempotency-key",
    "the same key and body name the same task, which the call joins or replays",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
)
OPTIONS = (
    IDEMPOTENCY_KEY,
    _header("x-fairlane-timeout", "ms from the submission to the end", _MS),
    _header(
        "x-fairlane-priority",
        "among the user's own tasks; 5 is first",
        {"type": "integer", "minimum": 0, "maximum": 5},
    ),
    _header(
        "x-fairlane-mode",
        "a queue of the tier; default: `vision` with an image, else `stream`",
        {"enum": [*MODES]},
    ),
    _header(
        "x-fairlane-on-disconnect",
        "what happens if the client disconnects; default: cancel",
        {"enum": ["cancel", "continue"]},
    ),
    _header("x-fairlane-result-ttl", "ms", _MS),
    _header(
        "x-fairlane-repair",
        "1: retry once if the output does not match its JSON schema",
        {"enum": ["1", "0", "true", "false"]},
    ),
    _header("x-fairlane-metadata", "a JSON object of at most 4,096 bytes"),
    _header("x-fairlane-user", "for delegating keys"),
    _header("x-fairlane-tier", "for delegating keys"),
)
VERSION = _header("anthropic-version", "any; the answer has Anthropic's shape")
UNCHANGED = "The worker gets the body unchanged; options of Fairlane are headers."


_CHUNKS = sse({"description": "JSON of a chunk or an error; the last one is `[DONE]`", "type": "string"})
_EVENTS = sse(STRING, event=True)
_AUDIO = {kind: {"schema": _BINARY} for kind in ("audio/*", "application/octet-stream")}

_SUBMISSIONS: tuple[tuple[str, Any, str, Json, Json], ...] = (
    ("chat/completions", openai.chat_completions, "Create a chat completion", json(s.ChatRequest), _CHUNKS),
    ("completions", openai.completions, "Create a text completion", json(s.CompletionRequest), _CHUNKS),
    ("embeddings", openai.embeddings, "Create embeddings", json(s.EmbeddingRequest), {}),
    ("responses", responses.responses, "Create a response", json(s.ResponsesRequest), _EVENTS),
    ("moderations", media.moderations, "Classify content", json(s.ModerationRequest), {}),
    (
        "audio/transcriptions",
        media.transcriptions,
        "Transcribe audio",
        _form(s.TranscriptionForm),
        _TEXT | _EVENTS,
    ),
    (
        "audio/translations",
        media.translations,
        "Translate audio into English",
        _form(s.TranslationForm),
        _TEXT,
    ),
    ("audio/speech", media.speech, "Create speech", json(s.SpeechRequest), _AUDIO | _EVENTS),
    ("images/generations", media.generations, "Create images", json(s.ImageRequest), _EVENTS),
    ("images/edits", media.edits, "Edit images", _form(s.EditForm), _EVENTS),
    ("images/variations", media.variations, "Create variations of an image", _form(s.VariationForm), {}),
)
"""OpenAI's calls that submit a task: path after /v1/, handler, summary, body, and answers besides JSON."""
SUBMISSIONS = tuple(
    RawRoute(
        *(
            "POST",
            f"/v1/{path}",
            call,
            f"{path.replace('/', '.')}.create",
            summary,
            f"{summary}. {UNCHANGED}",
        ),
        access=Access.TASKS,
        submits=True,
        parameters=OPTIONS,
        body=body,
        answer=json(OBJECT) | answers,
    )
    for path, call, summary, body, answers in _SUBMISSIONS
)

_EITHER_ERROR = json({"anyOf": [ref(s.OpenAIError), ref(s.AnthropicError)]})
MODELS = (
    RawRoute(
        *("GET", "/v1/models", openai.models, "models.list", "List models"),
        access=Access.TASKS,
        description="The models that are configured or that workers serve, as far as the key may use them.",
        parameters=(
            VERSION,
            _page(messages.MAX_OF_PAGE),
            _query("after_id", "the page begins after this model"),
            _query("before_id", "the page ends before this model"),
        ),
        error=_EITHER_ERROR,
    ),
    RawRoute(
        *("GET", "/v1/models/{model:path}", openai.model, "models.get", "Get a model"),
        access=Access.TASKS,
        parameters=(VERSION,),
        error=_EITHER_ERROR,
    ),
)

RESPONSES = (
    RawRoute(
        *(
            "GET",
            "/v1/responses/{response_id}",
            stored_responses.retrieve,
            "responses.get",
            "Get a stored response",
        ),
        access=Access.TASKS,
        description="Get a stored response, or with `stream` its events.",
        parameters=(
            _query("stream", "return its events", s.BOOLEAN),
            _query(
                "starting_after",
                "with `stream`: the `sequence_number` of the last event seen",
                {"type": "integer", "minimum": 0},
            ),
        ),
        answer=json(OBJECT) | _EVENTS,
    ),
    RawRoute(
        *(
            "DELETE",
            "/v1/responses/{response_id}",
            stored_responses.delete,
            "responses.delete",
            "Delete a stored response",
        ),
        description="A response that is running is cancelled.",
    ),
    RawRoute(
        *(
            "POST",
            "/v1/responses/{response_id}/cancel",
            stored_responses.cancel,
            "responses.cancel",
            "Cancel a background response",
        ),
        access=Access.TASKS,
    ),
    RawRoute(
        *("GET", "/v1/responses/{response_id}/input_items", stored_responses.input_items),
        *("responses.input_items.list", "List the input items of a stored response"),
        access=Access.TASKS,
        parameters=(
            _page(MAX_OF_PAGE),
            _query("order", "default: desc, the newest first", _ORDER),
            _query("after", "the page begins after this item"),
        ),
    ),
)


_ANTHROPIC = (
    *OPTIONS,
    _header("x-api-key", "a key, instead of `Authorization: Bearer`"),
    VERSION,
    _header("anthropic-beta", "ignored"),
)

MESSAGES = (
    RawRoute(
        *("POST", "/v1/messages", messages.messages, "messages.create", "Create a message"),
        access=Access.TASKS,
        description="Create a message, as in Anthropic's reference. Members that a chat model cannot serve are rejected by name.",
        submits=True,
        parameters=_ANTHROPIC,
        body=json(s.MessagesRequest),
        answer=json(OBJECT) | _EVENTS,
    ),
    RawRoute(
        *(
            "POST",
            "/v1/messages/count_tokens",
            messages.count_tokens,
            "messages.count_tokens",
            "Estimate the input tokens of a message",
        ),
        access=Access.TASKS,
        description="An estimate: a quarter of the bytes. No task is created.",
        parameters=_ANTHROPIC,
        body=json(s.CountTokensRequest),
        answer=json(fields(input_tokens=s.INTEGER, estimated={"const": True})),
    ),
)

_WAYS = "The call waits for the result; with `async` it returns a task id, with `stream` the task's events."
_TASK_EVENTS = {"text/event-stream": {"itemSchema": {"$ref": REF.format(name="NativeEvent")}}}
_AFTER = (
    _query("after", "the id of the last event seen"),
    _query("fromLatest", "1: only later events"),
    _query("token", "of a `streamUrl`, instead of a key"),
    _header("last-event-id", "takes precedence over `after`"),
)


def _task(path: str, call: Any, id_: str, summary: str, body: Any) -> RawRoute:
    return RawRoute(
        *("POST", path, call, id_, summary),
        access=Access.TASKS,
        description=f"{summary}. {_WAYS}",
        submits=True,
        parameters=(IDEMPOTENCY_KEY,),
        body=json(body),
        answer=json({}) | _TASK_EVENTS,
        answers={"202": {"description": "With `async`", "content": json(s.Accepted)}},
    )


def _events(path: str, id_: str, summary: str, *parameters: Json) -> RawRoute:
    return RawRoute(
        *("GET", path, native.events, id_, summary),
        access=Access.READER,
        description=f"{summary}: past events, or those after one, then new ones as they arrive.",
        parameters=(*parameters, *_AFTER),
        answer=_TASK_EVENTS,
        answers={"204": {"description": "The last event was seen"}},
    )


_TASK_ID = {"in": "query", "name": "taskId", "required": True, "schema": STRING}

NATIVE = (
    _task("/api/openai", native.openai, "tasks.create_chat", "Create a chat task", s.NativeRequest),
    _task("/api/tasks", native.submit_task, "tasks.create", "Create a task", s.TaskRequest),
    RawRoute(
        *("POST", "/api/submitTask", submit_task_api.submit, "queue.submit", "Submit an endpoint request"),
        access=Access.TASKS,
        description="Without `online` the gateway calls the endpoint; with it the client gets a permit to call it.",
        submits=True,
        parameters=(IDEMPOTENCY_KEY,),
        body=json(s.PlainTask),
        answer=json(s.PlainSubmitted),
    ),
    RawRoute(
        *("GET", "/api/queryTask", submit_task_api.query, "queue.query", "Get an endpoint request"),
        access=Access.TASKS,
        parameters=({**_TASK_ID, "name": "task_id"},),
        answer=json(s.PlainStatus),
    ),
    RawRoute(
        *("POST", "/api/cancelTask", submit_task_api.cancel, "queue.cancel", "Cancel an endpoint request"),
        access=Access.TASKS,
        body=json(fields(task_id=STRING)),
        answer=json(s.PlainCancelled),
    ),
    _events(
        "/api/sse-stream",
        "tasks.events_by_query",
        "Stream a task's events, with the id in the query",
        _TASK_ID,
    ),
    RawRoute(
        *("GET", "/api/task/{task_id}", native.status, "tasks.get", "Get a task"),
        access=Access.TASKS,
        description="Its position and estimated wait while it waits, its result when it is completed.",
        answer=json(s.TaskStatus),
    ),
    RawRoute(
        *("POST", "/api/task/{task_id}/cancel", native.cancel, "tasks.cancel", "Cancel a task"),
        access=Access.TASKS,
        description="A task that has ended does not change; the answer has its status.",
        answer=json(s.Cancelled),
    ),
    _events("/api/task/{task_id}/events", "tasks.events", "Stream a task's events"),
)

_PERMIT = (
    _header("x-fairlane-permit", "the permit, from the event `permit`"),
    _header("x-task-id", "the task of the permit"),
)


def _check(path: str, id_: str, description: str) -> RawRoute:
    return RawRoute(
        *("GET", path, permits.check, id_, "Check a permit"),
        access=Access.OPEN,
        any_method=True,
        description=f"The proxy in front of an endpoint asks whether a request may pass, with any method. {description}",
        parameters=_PERMIT,
        answer=json(s.LetIn),
    )


PERMITS = (
    _check("/api/permit/check", "permits.check_by_url", "`X-Original-URL` names the endpoint."),
    _check("/api/permit/check/{endpoint}", "permits.check", "A permit passes once."),
    _check(
        "/api/permit/check/{endpoint}/{original:path}",
        "permits.check_with_path",
        "For proxies that append the path.",
    ),
    RawRoute(
        *("POST", "/api/permit/done", permits.done, "permits.done", "Report the end of a request"),
        description="The proxy, or the server behind it, reports that the request has ended; its slot is free.",
        access=Access.OPEN,
        any_method=True,
        answer=json(s.LeftOff),
        parameters=(_header("x-fairlane-receipt", "from the answer of the check"),),
    ),
)

_EXPIRY = {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S}
_UPLOAD = {
    "type": "object",
    "required": ["file", "purpose"],
    "additionalProperties": False,
    "properties": {
        "file": _BINARY,
        "purpose": {"enum": [*files.PURPOSES]},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": _EXPIRY,
    },
}
_CONTENT = {"application/octet-stream": {"schema": _BINARY}}

FILES = (
    RawRoute(*("POST", "/v1/files", files.create, "files.create", "Upload a file"), body=_form(_UPLOAD)),
    RawRoute(
        *("GET", "/v1/files", files.listed, "files.list", "List files"),
        parameters=(
            _page(files.MAX_OF_PAGE),
            _query("after", "the page begins after this id"),
            _query("order", "by time; default: desc", _ORDER),
            _query("purpose", "only files of this purpose"),
        ),
    ),
    RawRoute(*("GET", "/v1/files/{file_id}", files.retrieve, "files.get", "Get a file")),
    RawRoute(
        *("GET", "/v1/files/{file_id}/content", files.content, "files.content", "Get the content of a file"),
        parameters=(_header("range", "bytes=FROM-TO"),),
        answer=_CONTENT,
        answers={"206": {"description": "With `Range`", "content": _CONTENT}},
    ),
    RawRoute(*("DELETE", "/v1/files/{file_id}", files.delete, "files.delete", "Delete a file")),
)

RAW_ROUTES = (*SUBMISSIONS, *MODELS, *RESPONSES, *MESSAGES, *NATIVE, *PERMITS, *FILES)
"""In the order in which patterns are matched."""
