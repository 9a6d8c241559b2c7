"""The hot calls: raw ASGI, found and carried out before FastAPI, which describes them in its document."""

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from fairlane.gateway.access import Access
from fairlane.gateway.api import (
    files,
    kept_responses,
    media,
    messages,
    native,
    openai,
    permits,
    plain,
    responses,
)
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.models.base import IdempotencyHeader, Left
from fairlane.gateway.api.models.files import FileDeleted, FileList, FileObject
from fairlane.gateway.api.models.media import (
    EditForm,
    ImageRequest,
    Images,
    ModerationRequest,
    Moderations,
    SpeechRequest,
    Transcript,
    TranscriptionForm,
    TranslationForm,
    VariationForm,
    form_of,
)
from fairlane.gateway.api.models.messages import (
    AnthropicError,
    AnthropicHeaders,
    AnthropicModel,
    CountTokensRequest,
    Message,
    MessageEvent,
    MessagesRequest,
    ModelPage,
    TokensCount,
)
from fairlane.gateway.api.models.native import Accepted, Cancelled, NativeRequest, TaskRequest, TaskStatus
from fairlane.gateway.api.models.openai import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    Completion,
    CompletionRequest,
    EmbeddingList,
    EmbeddingRequest,
    ModelList,
    ModelRow,
    OpenAIHeaders,
)
from fairlane.gateway.api.models.permits import LeftOff, LetIn
from fairlane.gateway.api.models.plain import (
    PlainCancelled,
    PlainStatus,
    PlainSubmitted,
    PlainTask,
    PlainTaskId,
)
from fairlane.gateway.api.models.refusals import NativeError, OpenAIError
from fairlane.gateway.api.models.responses import (
    InputItems,
    ResponseDeleted,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
)
from fairlane.gateway.calls.bounds import LEAST_EXPIRY_S, MOST_EXPIRY_S
from fairlane.gateway.responses.items import MOST_OF_PAGE

SUBMIT = (400, 401, 403, 404, 408, 410, 413, 415, 422, 429, 499, 500, 502, 503, 504)
READ = (400, 401, 403, 404, 429, 503)

Text = str | Left
FromLatest = Annotated[Text, Query(alias="fromLatest", description="1: only what comes from now on")]
After = Annotated[Text, Query(description="the last event's id that was seen")]
LastEventId = Annotated[Text, Header(alias="Last-Event-ID", description="beats `after`")]
Ticket = Annotated[Text, Query(description="of a `streamUrl`, in place of a key")]
EVENTS = {"after": After, "from_latest": FromLatest, "token": Ticket, "last_event_id": LastEventId}
TASK_ID = {"task_id": Annotated[str, Path()]}
ANTHROPICS = {"ours": Annotated[AnthropicHeaders, Header()]}
VERSION = Annotated[
    Text, Header(alias="anthropic-version", description="any: the answer is as Anthropic's clients want it")
]
PAGING = {
    "version": VERSION,
    "limit": Annotated[
        int | Left, Query(ge=1, le=messages.MOST_OF_PAGE, description="with it: models in a page")
    ],
    "after_id": Annotated[Text, Query(description="with it: behind which model the page begins")],
    "before_id": Annotated[Text, Query(description="with it: before which model the page ends")],
}
EITHER = OpenAIError | AnthropicError
OURS = {"ours": Annotated[OpenAIHeaders, Header()]}
NAMED = {"named": Annotated[IdempotencyHeader, Header()]}
AS_IT_CAME = "\n\nThe body goes to the worker as it came; what Fairlane needs to know stands in headers."
READINGS = (
    "\n\nWith `async` the answer is an id at once, to be polled or followed. With `stream` it is the task's events. "
    "Else the call waits for the result."
)

REF = "#/components/schemas/{model}"
LEFT = {
    "limit": "the limit of which least is left",
    "remaining": "how much of it is left",
    "reset": "until all of it is back, as 12ms, 1.5s, 6m0s",
}
LIMIT_HEADERS = {
    f"x-ratelimit-{name}-{counts}": {
        "schema": {"type": "string"},
        "description": f"Where there is a limit: {says}",
    }
    for counts in ("requests", "tokens")
    for name, says in LEFT.items()
}


def stream_schemas() -> dict[str, Any]:
    """The parts of the document on what streams hold."""
    from fairlane.gateway.api.events import NativeEvent  # noqa: PLC0415 - its models are made for the document alone

    events, definitions = TypeAdapter.json_schemas(
        [
            ("NativeEvent", "serialization", TypeAdapter(NativeEvent)),
            ("ChatCompletionChunk", "serialization", TypeAdapter(ChatCompletionChunk)),
            ("MessageEvent", "serialization", TypeAdapter(MessageEvent)),
            ("ResponseEvent", "serialization", TypeAdapter(ResponseEvent)),
        ],
        ref_template=REF,
    )
    schemas: dict[str, Any] = definitions["$defs"]
    for schema in schemas.values():
        members = schema.get("properties", {})
        if "event" in members:  # a frame's data is text, which is JSON
            members["data"] = _json_text(members["data"])
    return {**schemas, "NativeEvent": events["NativeEvent", "serialization"]}


def _json_text(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def _stream(item: dict[str, Any]) -> dict[str, Any]:
    """An answer of server-sent events, of which each is an `item`."""
    return {"text/event-stream": {"itemSchema": item}}


def _chunks(name: str) -> dict[str, Any]:
    names = (name, "OpenAIError")
    text = _json_text({"anyOf": [{"$ref": REF.format(model=name)} for name in names]})
    data = {"anyOf": [{"const": "[DONE]"}, text]}
    return _stream({"type": "object", "required": ["data"], "properties": {"data": data}})


def _named_events(name: str) -> dict[str, Any]:
    """Events that are named by their types."""
    data = _json_text({"$ref": REF.format(model=name)})
    members = {"event": {"type": "string"}, "data": data}
    return _stream({"type": "object", "required": ["event", "data"], "properties": members})


EVENT_STREAM = _stream({"$ref": REF.format(model="NativeEvent")})


def _openai(path: str, call: Any, body: Any, whole: Any, chunk: str | None, says: str) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, openai=True, submits=True)
    if chunk:
        responses[200] = {"content": _chunks(chunk)}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=True,
        body=body,
        parameters=OURS,
        description=says,
        response_model=whole,
        responses=with_limits(responses),
        tags=["openai"],
    )


def _responses(says: str) -> HotRoute:
    refused: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, openai=True, submits=True)
    refused[200] = {"content": _response_content()}
    return HotRoute(
        *("POST", "/v1/responses", responses.responses, Access.CALLER),
        submits=True,
        body=ResponsesRequest,
        parameters=OURS,
        description=says,
        response_model=ResponseObject,
        responses=with_limits(refused),
        tags=["openai"],
    )


def _response_content() -> dict[str, Any]:
    """The events of a response."""
    data = _named_events("ResponseEvent")["text/event-stream"]["itemSchema"]
    done = {"type": "object", "required": ["data"], "properties": {"data": {"const": "[DONE]"}}}
    return _stream({"anyOf": [data, done]})


def _kept(
    method: str, path: str, call: Any, whole: Any, says: str, query: dict[str, Any] | None = None
) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*READ, openai=True)
    if query and "starting_after" in query:
        responses[200] = {"content": _response_content()}
    return HotRoute(
        *(method, f"/v1/responses/{{response_id}}{path}", call, Access.CALLER),
        parameters={"response_id": Annotated[str, Path()], **(query or {})},
        description=says,
        response_model=whole,
        responses=with_limits(responses),
        tags=["openai"],
    )


NAMES_ITS_TYPE = (
    "\n\nWhere no connected worker names the type of its tasks the answer is a 404 (`TYPE_NOT_OFFERED`)."
)
TYPED_EVENTS = _stream(
    {
        "type": "object",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    }
)
PLAIN_TEXT = {"text/plain": {"schema": {"type": "string"}}}
AUDIO = {
    kind: {"schema": {"type": "string", "format": "binary"}}
    for kind in ("audio/*", "application/octet-stream")
}


def _media(
    path: str,
    call: Any,
    body: Any,
    whole: Any,
    says: str,
    *,
    form: bool = False,
    others: dict[str, Any] | None = None,
) -> HotRoute:
    """A call for audio, images or moderations. `others`: answers of other types than JSON."""
    responses: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, openai=True, submits=True)
    if others:
        responses[200] = {"content": others}
    described = {"openapi_extra": form_of(body)} if form else {"body": body}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=True,
        parameters=OURS,
        description=says + NAMES_ITS_TYPE,
        response_model=whole,
        responses=with_limits(responses),
        tags=["openai"],
        **described,
    )


def _anthropic(path: str, call: Any, body: Any, whole: Any, says: str, *, submits: bool) -> HotRoute:
    statuses = (*SUBMIT, 529) if submits else (*READ, 408, 413, 415)
    responses = refusals(*statuses, submits=submits, model=AnthropicError)
    if submits:
        responses[200] = {"content": _named_events("MessageEvent")}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=submits,
        body=body,
        parameters=ANTHROPICS,
        description=says,
        response_model=whole,
        responses=with_limits(responses),
        tags=["anthropic"],
    )


def with_limits(responses: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """Each answer to a caller says what is left of his limits."""
    told = {status: {"headers": LIMIT_HEADERS} for status in (200, *responses) if status not in (401, 403)}
    return {status: {**responses.get(status, {}), **told.get(status, {})} for status in (*responses, *told)}


def _native(path: str, call: Any, body: Any, says: str) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, submits=True)
    responses[200] = {
        "description": "The result, any JSON; or with `stream` the task's events",
        "content": {"application/json": {"schema": {}}, **EVENT_STREAM},
    }
    responses[202] = {"model": Accepted, "description": "With `async`: where to read it later"}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=True,
        body=body,
        parameters=NAMED,
        description=says,
        response_model=None,
        responses=responses,
        tags=["native"],
    )


def _events(path: str, parameters: dict[str, Any], says: str) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*READ)
    responses[200] = {"content": EVENT_STREAM}
    responses[204] = {"description": "The last event was seen: there is nothing to come"}
    return HotRoute(
        *("GET", path, native.events, Access.READER),
        parameters=parameters,
        description=says,
        response_model=None,
        response_class=StreamingResponse,
        responses=responses,
        tags=["native"],
    )


ENDPOINT = {"endpoint": Annotated[str, Path(description="the endpoint that the proxy stands in front of")]}
SHOWN = {
    "permit": Annotated[Text, Header(alias="X-Fairlane-Permit", description="what the event `permit` held")],
    "task": Annotated[Text, Header(alias="X-Task-Id", description="the task of the permit")],
}


def _check(path: str, parameters: dict[str, Any], says: str) -> HotRoute:
    refused = refusals(*((403, 404, 503) if "endpoint" in parameters else (400, 403, 503)))
    refused[403]["description"] = "`code`: PERMIT_NEEDED, PERMIT_INVALID, PERMIT_USED, PERMIT_EXPIRED"
    return HotRoute(
        *("GET", path, permits.check, Access.OPEN),
        any_method=True,
        parameters=SHOWN | parameters,
        description=f"May this request pass? Asked by the proxy in front of an endpoint, by any method. {says}",
        response_model=LetIn,
        responses=refused,
        tags=["permits"],
    )


FILE_ID = {"file_id": Annotated[str, Path()]}
FILE_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"enum": [*files.PURPOSES]},
                        "expires_after[anchor]": {"const": "created_at"},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": LEAST_EXPIRY_S,
                            "maximum": MOST_EXPIRY_S,
                        },
                    },
                }
            }
        },
    }
}
FILE_PAGE = {
    "limit": Annotated[int | Left, Query(ge=1, le=files.MOST_OF_PAGE, description="files in a page")],
    "after": Annotated[Text, Query(description="the id behind which the page begins")],
    "order": Annotated[Literal["asc", "desc"] | Left, Query(description="by time; the newest first")],
    "purpose": Annotated[Text, Query(description="only those")],
}


def _file(
    method: str,
    path: str,
    call: Any,
    whole: Any,
    says: str,
    *more: int,
    answers: Any = None,
    **described: Any,
) -> HotRoute:
    return HotRoute(
        *(method, path, call, Access.CALLER),
        description=says,
        response_model=whole,
        responses=with_limits(
            refusals(401, 403, 404, 429, 503, *more, openai=True, files=True) | (answers or {})
        ),
        tags=["openai"],
        **described,
    )


FILES = (
    _file(
        *("POST", "/v1/files", files.create, FileObject),
        "Brings a file, as a form: `file`, `purpose` and, if it is to expire sooner than by the settings, `expires_after`. It is "
        "written to the storage as it comes, and there when the answer is.",
        *(400, 408, 413, 415, 507),
        openapi_extra=FILE_FORM,
    ),
    _file(
        *("GET", "/v1/files", files.listed, FileList, "The caller's files, by time.", 400),
        parameters=FILE_PAGE,
    ),
    _file(
        *("GET", "/v1/files/{file_id}", files.retrieve, FileObject, "One of the caller's files."),
        parameters=FILE_ID,
    ),
    _file(
        *("GET", "/v1/files/{file_id}/content", files.content, None),
        "What is in a file: all of it, or with `Range` a part.",
        416,
        parameters=FILE_ID | {"range": Annotated[Text, Header(alias="Range", description="bytes=FROM-TO")]},
        response_class=StreamingResponse,
        answers={
            status: {
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
            }
            for status in (200, 206)
        },
    ),
    _file(
        *("DELETE", "/v1/files/{file_id}", files.delete, FileDeleted, "Deletes a file."), parameters=FILE_ID
    ),
)

ROUTES = (
    _openai(
        "/v1/chat/completions",
        openai.chat_completions,
        ChatRequest,
        ChatCompletion,
        "ChatCompletionChunk",
        "OpenAI's chat completions: a whole answer, or with `stream` its chunks." + AS_IT_CAME,
    ),
    _responses(
        "OpenAI's Responses: a whole response, or with `stream` its events. What a model for chat completions cannot be told is "
        "refused, by its name. Where all workers of its models take the request as it is, it goes to them so."
    ),
    _openai(
        "/v1/completions",
        openai.completions,
        CompletionRequest,
        Completion,
        "Completion",
        "OpenAI's text completions: a whole answer, or with `stream` its parts." + AS_IT_CAME,
    ),
    _openai(
        "/v1/embeddings",
        openai.embeddings,
        EmbeddingRequest,
        EmbeddingList,
        None,
        "OpenAI's embeddings." + AS_IT_CAME,
    ),
    _media(
        "/v1/moderations",
        media.moderations,
        ModerationRequest,
        Moderations,
        "OpenAI's moderations." + AS_IT_CAME,
    ),
    _media(
        "/v1/audio/transcriptions",
        media.transcriptions,
        TranscriptionForm,
        Transcript,
        "OpenAI's transcriptions of audio: as JSON, text or subtitles, or with `stream` its events.",
        form=True,
        others=PLAIN_TEXT | TYPED_EVENTS,
    ),
    _media(
        "/v1/audio/translations",
        media.translations,
        TranslationForm,
        Transcript,
        "OpenAI's translations of audio into English: as JSON, text or subtitles.",
        form=True,
        others=PLAIN_TEXT,
    ),
    _media(
        "/v1/audio/speech",
        media.speech,
        SpeechRequest,
        None,
        "OpenAI's speech: audio as it comes, or with `stream_format: sse` its events." + AS_IT_CAME,
        others=AUDIO | TYPED_EVENTS,
    ),
    _media(
        "/v1/images/generations",
        media.generations,
        ImageRequest,
        Images,
        "OpenAI's images: all of them, or with `stream` as events." + AS_IT_CAME,
        others=TYPED_EVENTS,
    ),
    _media(
        "/v1/images/edits",
        media.edits,
        EditForm,
        Images,
        "OpenAI's edits of images: all of them, or with `stream` as events.",
        form=True,
        others=TYPED_EVENTS,
    ),
    _media(
        "/v1/images/variations",
        media.variations,
        VariationForm,
        Images,
        "OpenAI's variations of an image.",
        form=True,
    ),
    _anthropic(
        "/v1/messages",
        messages.messages,
        MessagesRequest,
        Message,
        "Anthropic's Messages: a whole answer, or with `stream` its events. What a model for chat completions cannot be told is "
        "refused, by its name.",
        submits=True,
    ),
    _anthropic(
        "/v1/messages/count_tokens",
        messages.count_tokens,
        CountTokensRequest,
        TokensCount,
        "How many tokens of input a Messages request has: an estimate, a quarter of its bytes. No task is made.",
        submits=False,
    ),
    HotRoute(
        *("GET", "/v1/models", openai.models, Access.CALLER),
        description="The models that are configured or offered now, of those that the caller's key covers.",
        parameters=PAGING,
        response_model=ModelList | ModelPage,
        responses=with_limits(refusals(400, 401, 403, 429, 503, openai=True, model=EITHER)),
        tags=["openai"],
    ),
    _native(
        "/api/openai",
        native.openai,
        NativeRequest,
        "Submits any JSON object as a task of type `openaiLike`." + READINGS,
    ),
    _native(
        "/api/tasks",
        native.submit_task,
        TaskRequest,
        "Submits a task of any type, with its own payload; one of a `template`; a `chain` of several stages; a request to an "
        "endpoint (`http`), or for a permit to call it oneself (`permit`)." + READINGS,
    ),
    HotRoute(
        *("POST", "/api/submitTask", plain.submit, Access.CALLER),
        submits=True,
        body=PlainTask,
        parameters=NAMED,
        description="Has an endpoint called in its turn (`offline`), or asks for a permit to call it (`online`).",
        response_model=PlainSubmitted,
        responses=refusals(*SUBMIT, submits=True),
        tags=["native"],
    ),
    HotRoute(
        *("GET", "/api/queryTask", plain.query, Access.CALLER),
        parameters={"task_id": Annotated[str, Query()]},
        description="How such a task stands, with the answer of its endpoint when it is completed.",
        response_model=PlainStatus,
        responses=refusals(*READ),
        tags=["native"],
    ),
    HotRoute(
        *("POST", "/api/cancelTask", plain.cancel, Access.CALLER),
        body=PlainTaskId,
        description="Cancels such a task. One that has ended stays as it is.",
        response_model=PlainCancelled,
        responses=refusals(*READ, 408, 413, 415),
        tags=["native"],
    ),
    _events(
        "/api/sse-stream",
        {"task_id": Annotated[str, Query(alias="taskId")], **EVENTS},
        "The same as `GET /api/task/{task_id}/events`, with the id in the query.",
    ),
    HotRoute(
        *("GET", "/api/task/{task_id}", native.status, Access.CALLER),
        description="How a task stands: its place and estimated wait while it waits, its result when it is completed.",
        parameters=TASK_ID,
        response_model=TaskStatus,
        responses=refusals(*READ),
        tags=["native"],
    ),
    HotRoute(
        *("POST", "/api/task/{task_id}/cancel", native.cancel, Access.CALLER),
        description="Cancels a task. One that has ended stays as it is, and the answer says how it ended.",
        parameters=TASK_ID,
        response_model=Cancelled,
        responses=refusals(*READ),
        tags=["native"],
    ),
    _check(
        "/api/permit/check", {}, "The endpoint is found by the URL that the proxy tells (X-Original-URL)."
    ),
    _check("/api/permit/check/{endpoint}", ENDPOINT, "Yes is said once for each permit."),
    _check(
        "/api/permit/check/{endpoint}/{original:path}",
        {
            **ENDPOINT,
            "original": Annotated[str, Path(description="the path of the request, which is not looked at")],
        },
        "For proxies that put the path of the request behind.",
    ),
    HotRoute(
        *("POST", "/api/permit/done", permits.done, Access.OPEN),
        any_method=True,
        parameters={
            "receipt": Annotated[
                Text, Header(alias="X-Fairlane-Receipt", description="from the check call's answer")
            ]
        },
        description="What was let in has ended: its place is free. Told by the proxy, or by the server behind it.",
        response_model=LeftOff,
        responses=refusals(403, 503)
        | {403: {"model": NativeError, "description": "`code`: RECEIPT_INVALID"}},
        tags=["permits"],
    ),
    _events(
        "/api/task/{task_id}/events",
        TASK_ID | EVENTS,
        "A task's events as server-sent events, from its first or behind one that was seen, then as they come.",
    ),
    HotRoute(
        *("GET", "/v1/models/{model:path}", openai.model, Access.CALLER),
        description="One of the models of `GET /v1/models`.",
        parameters={"model": Annotated[str, Path()], "version": VERSION},
        response_model=ModelRow | AnthropicModel,
        responses=with_limits(refusals(*READ, openai=True, model=EITHER)),
        tags=["openai"],
    ),
    *FILES,
    _kept(
        *("GET", "", kept_responses.retrieve, ResponseObject),
        "A response that is kept, as it stands now; or with `stream` its events, from the first or behind `starting_after`, then "
        "as they come.",
        {
            "stream": Annotated[bool | Left, Query(description="its events")],
            "starting_after": Annotated[
                int | Left,
                Query(
                    ge=0, description="with `stream`: the `sequence_number` of the last event that was seen"
                ),
            ],
        },
    ),
    _kept(
        *("DELETE", "", kept_responses.delete, ResponseDeleted),
        "Deletes a response that is kept. One that runs is cancelled.",
    ),
    _kept(
        *("POST", "/cancel", kept_responses.cancel, ResponseObject),
        "Cancels a response in the background. One that has ended stays as it is.",
    ),
    _kept(
        *("GET", "/input_items", kept_responses.input_items, InputItems),
        "The items of a response's input, without those that it goes on from.",
        {
            "limit": Annotated[int | Left, Query(ge=1, le=MOST_OF_PAGE, description="of items, 20")],
            "order": Annotated[Literal["asc", "desc"] | Left, Query(description="newest first, `desc`")],
            "after": Annotated[Text, Query(description="the id of the item behind which the page begins")],
        },
    ),
)
"""In the order in which patterns are tried."""
