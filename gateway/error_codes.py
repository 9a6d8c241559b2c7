"""Every error code that a client can receive: when, and what to do. `/docs` and docs/errors.md show this table. Pure.

Codes of failed tasks also have a row in `queues/failures.py`, with their statuses; `rejects` is the status without a task.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fairlane.queues.failures import FAILURES

BUSY = frozenset({"QUEUE_FULL", "WAIT_TOO_LONG", "MODEL_TOO_BUSY"})
"""The codes that are overload to Anthropic: a 529 instead of a 503."""
OVERLOADED = 529


class ErrorCode(NamedTuple):
    """One code."""

    code: str
    group: str
    rejects: int | None
    """The HTTP status of a rejected call; None: only accepted tasks fail with it."""
    cause: str
    action: str
    retry: bool = False
    """Whether the same call can succeed later; of failures, their own row says it."""

    @property
    def v1_code(self) -> str:
        """Return the code on /v1."""
        return _V1_CODES.get(self.code) or (FAILURES[self.code].code if self.code in FAILURES else self.code)

    @property
    def docs_url(self) -> str:
        """Return where every gateway explains it."""
        return f"/docs#{self.code}"

    @property
    def retryable(self) -> bool:
        """Return whether the same call can succeed later, as a rule."""
        return self.retry or (self.code in FAILURES and FAILURES[self.code].retry)

    def shown(self) -> dict[str, Any]:
        """Return the code as the OpenAPI document and the page of the API have it."""
        statuses = {api: self.statuses(api) for api in ("native", "openai", "anthropic")}
        own = {"code": self.code, "openaiCode": self.v1_code, "group": self.group, "statuses": statuses}
        return own | {"retryable": self.retryable, "cause": self.cause, "action": self.action}

    def statuses(self, api: str) -> list[int]:
        """Return the HTTP statuses on an API: `native`, `openai` or `anthropic`; of a rejection first."""
        row = FAILURES.get(self.code)
        found = [self.rejects] if self.rejects else []
        if row is not None:
            found.append(row.native if api == "native" else row.openai)
        if self.code == "NO_WORKER" and api != "native":
            found = [503]
        if api == "anthropic" and self.code in BUSY:
            found = [OVERLOADED if status == 503 else status for status in found]
        return list(dict.fromkeys(found))


_V1_CODES = {
    "RATE_LIMITED": "rate_limit_exceeded",
    "PREVIOUS_RESPONSE_NOT_FOUND": "previous_response_not_found",
}
"""OpenAI's codes of rejections; the table of failures has those of failures."""

_REQUEST, _ACCESS, _CAPACITY, _FAILED = "Requests", "Access", "Limits and capacity", "Failed tasks"
_FEATURES, _GATEWAY, _ADMIN = "Files, batches, permits and webhooks", "Gateway", "Operators' calls"
GROUPS = (_REQUEST, _ACCESS, _CAPACITY, _FAILED, _FEATURES, _GATEWAY, _ADMIN)


# fmt: off
_ROWS = (
    # the request
    ErrorCode("INVALID_REQUEST", _REQUEST, 400, "A field is missing or wrong.", "Fix the field that the message names."),
    ErrorCode("BAD_REQUEST", _REQUEST, 400, "The HTTP is invalid, or the model server rejected the request.", "Fix the request."),
    ErrorCode("MODEL_NOT_FOUND", _REQUEST, 404, "No worker serves the model, or the key cannot use it.", "Use a name of `GET /v1/models`."),
    ErrorCode("TYPE_NOT_OFFERED", _REQUEST, 404, "No worker of the model supports this kind of task.", "Use another model, or start a worker that supports it."),
    ErrorCode("TEMPLATE_NOT_FOUND", _REQUEST, 404, "No template or route has this name.", "Use a name of `GET /api/routes`."),
    ErrorCode("CHAIN_NOT_FOUND", _REQUEST, 404, "No chain has this name.", "Use a name of `GET /api/routes`."),
    ErrorCode("TASK_NOT_FOUND", _REQUEST, 404, "The task does not exist, has expired, or is another user's.", "Check the id; read results before `task_result_ttl` ends."),
    ErrorCode("RESPONSE_NOT_FOUND", _REQUEST, 404, "The stored response does not exist or is another user's.", "Check the id, and `responses.ttl`."),
    ErrorCode("PREVIOUS_RESPONSE_NOT_FOUND", _REQUEST, 400, "The response in `previous_response_id` is not stored.", "Send the whole conversation."),
    ErrorCode("NOT_FOUND", _REQUEST, 404, "The path does not exist.", "Check the path and the client's base URL."),
    ErrorCode("METHOD_NOT_ALLOWED", _REQUEST, 405, "The path has other methods.", "Use a method of the header `Allow`."),
    ErrorCode("REQUEST_TIMEOUT", _REQUEST, 408, "The body arrived too slowly.", "Send it again over a faster connection.", retry=True),
    ErrorCode("IDEMPOTENCY_RESULT_GONE", _REQUEST, 410, "The request with this key ran, and its result was deleted.", "Use a new key to run it again."),
    ErrorCode("IDEMPOTENCY_KEY_REUSED", _REQUEST, 422, "The idempotency key belongs to another request.", "Use one key per request."),
    ErrorCode("BODY_TOO_LARGE", _REQUEST, 413, "The body exceeds its limit, after decompression.", "Send less, or raise `max_body_size`."),
    ErrorCode("PATH_TOO_LONG", _REQUEST, 414, "The path is too long.", "Send values in the body."),
    ErrorCode("UNSUPPORTED_MEDIA_TYPE", _REQUEST, 415, "The body has another type or encoding.", "Send JSON, plain or as `gzip`, `deflate` or `zstd`."),
    ErrorCode("RANGE_NOT_SATISFIABLE", _REQUEST, 416, "The file ends before the requested range.", "Read the size of the file first."),
    ErrorCode("UPGRADE_REQUIRED", _REQUEST, 426, "`/ws` accepts WebSocket connections of workers only.", "Use an HTTP path."),
    ErrorCode("HEAD_TOO_LARGE", _REQUEST, 431, "The headers are too large.", "Send fewer or shorter headers."),
    # access
    ErrorCode("UNAUTHORIZED", _ACCESS, 401, "The key or token is missing, invalid or revoked.", "Send `Authorization: Bearer <key>`."),
    ErrorCode("TOKEN_EXPIRED", _ACCESS, 401, "The signed token has expired.", "Get another token from your back end."),
    ErrorCode("TOKEN_USED_UP", _ACCESS, 403, "The signed token has no uses left.", "Get another token from your back end."),
    ErrorCode("LINK_INVALID", _ACCESS, 401, "The token of a `streamUrl` is invalid or has expired.", "Poll the task for a new link."),
    ErrorCode("FORBIDDEN", _ACCESS, 403, "The key, token or origin does not permit this.", "Use a key with the scope or model that the message names."),
    # limits and capacity
    ErrorCode("RATE_LIMITED", _CAPACITY, 429, "A limit of the key or user is reached.", "Retry later.", retry=True),
    ErrorCode("INSUFFICIENT_QUOTA", _CAPACITY, 429, "The credits do not cover the task.", "Ask an operator for credits, or wait for the next budget."),
    ErrorCode("USER_QUEUE_FULL", _CAPACITY, 429, "The user has `max_waiting_per_user` waiting tasks of this model.", "Retry later.", retry=True),
    ErrorCode("TOO_MANY_CALLS", _CAPACITY, 429, "The user has `max_calls_per_caller` open requests.", "Close some, or retry later.", retry=True),
    ErrorCode("TOO_MANY_IDEMPOTENCY_KEYS", _CAPACITY, 429, "The user sent too many new idempotency keys in a day.", "Retry later, or send no key.", retry=True),
    ErrorCode("QUEUE_FULL", _CAPACITY, 503, "The queue is full, and this user has a fair part of it.", "Retry later; operators: add capacity.", retry=True),
    ErrorCode("WAIT_TOO_LONG", _CAPACITY, 503, "The expected wait exceeds the timeout or the queue's limit.", "Retry later, or allow a longer timeout.", retry=True),
    ErrorCode("NO_WORKER", _CAPACITY, 503, "No worker serves the model or its fallbacks now.", "Retry later; operators: start a worker.", retry=True),
    ErrorCode("MODEL_UNAVAILABLE", _CAPACITY, 503, "The circuit breakers of all upstreams of the model are open.", "Retry later; operators: check the upstream.", retry=True),
    ErrorCode("MODEL_TOO_BUSY", _CAPACITY, None, "The provider limits its rate, and no attempt is left.", "Retry later."),
    ErrorCode("TOO_MANY_CONNECTIONS", _CAPACITY, 503, "The gateway process has no connection left.", "Retry; operators: add a replica.", retry=True),
    # failed tasks
    ErrorCode("QUEUE_TIMEOUT", _FAILED, None, "The task waited too long; `waitedFor` has the reason.", "Allow a longer timeout; operators: add capacity."),
    ErrorCode("CONNECT_TIMEOUT", _FAILED, None, "The model server accepted no connection in time.", "Retry; operators: check the server."),
    ErrorCode("FIRST_TOKEN_TIMEOUT", _FAILED, None, "The model sent no output in time.", "Retry; operators: check the server, raise `first_output`."),
    ErrorCode("STREAM_STALLED", _FAILED, None, "The model stopped sending output.", "Retry; operators: check the server, raise `silence`."),
    ErrorCode("TOTAL_TIMEOUT", _FAILED, None, "The task's whole time is over.", "Allow a longer timeout, or ask for less output."),
    ErrorCode("UPSTREAM_TIMEOUT", _FAILED, None, "The model server, or its proxy, reports a timeout.", "Retry; operators: check the server."),
    ErrorCode("JSON_PARSE_FAILED", _FAILED, None, "The answer does not match its schema, or is malformed.", "Retry, or change the prompt or the schema."),
    ErrorCode("STAGE_INPUT_FAILED", _FAILED, None, "A chain's next stage has no valid input.", "Fix the stage that the message names."),
    ErrorCode("UPSTREAM_ERROR", _FAILED, None, "The model server failed or closed the connection.", "Retry; operators: check its log."),
    ErrorCode("UPSTREAM_TRUNCATED", _FAILED, None, "The model server stopped in the middle of an answer.", "Retry; operators: check its log."),
    ErrorCode("UPSTREAM_AUTH", _FAILED, None, "The model server rejected the worker's key.", "Operators: replace the provider's key."),
    ErrorCode("UPSTREAM_QUOTA", _FAILED, None, "The provider's account is out of credit.", "Operators: pay the provider."),
    ErrorCode("ADDRESS_REFUSED", _FAILED, None, "The endpoint's host has a forbidden address.", "Operators: allow the network with `allow_private`."),
    ErrorCode("RESPONSE_TOO_LARGE", _FAILED, None, "The endpoint's response exceeds its limit.", "Operators: raise the endpoint's `max_body_size`."),
    ErrorCode("WORKER_ERROR", _FAILED, None, "The worker failed; its own codes are treated the same.", "Operators: check the worker's log."),
    ErrorCode("WORKER_LOST", _FAILED, None, "The worker disconnected after output, or repeatedly before it.", "Retry; operators: check the worker."),
    ErrorCode("PROTOCOL_ERROR", _FAILED, None, "The worker broke the protocol.", "Operators: fix the worker."),
    ErrorCode("OUTPUT_TOO_LARGE", _FAILED, None, "The output exceeds `max_output_size`.", "Ask for less output, or raise the limit."),
    ErrorCode("CONTEXT_LENGTH", _FAILED, None, "The prompt exceeds the model's context.", "Shorten the prompt."),
    ErrorCode("CONTENT_FILTERED", _FAILED, None, "The provider's filter rejected the content.", "Change the prompt."),
    ErrorCode("CANCELLED", _FAILED, None, "A client or an operator cancelled the task, or its reader left.", "Nothing."),
    ErrorCode("ENDPOINT_GONE", _FAILED, None, "The endpoint was removed or changed while the task waited.", "Send the request again."),
    ErrorCode("NOT_CHECKED", _FAILED, None, "The gateway was too busy to validate the answer.", "Retry; operators: add a replica."),
    ErrorCode("STORE_LOST", _FAILED, None, "Redis lost the task.", "Send it again; operators: check Redis."),
    ErrorCode("EVENTS_LOST", _FAILED, None, "Redis lost a part of the output.", "Send it again; operators: check Redis."),
    # files, batches, permits, webhooks
    ErrorCode("FILES_OFF", _FEATURES, 404, "This gateway accepts no files.", "Operators: set `files.max_size`."),
    ErrorCode("FILE_NOT_FOUND", _FEATURES, 404, "The file does not exist, has expired, or is another user's.", "Upload it again."),
    ErrorCode("FILE_TOO_LARGE", _FEATURES, 413, "The file exceeds the limit of one file.", "Split it."),
    ErrorCode("FILE_LOST", _FEATURES, 503, "Storing took too long, or the file was deleted meanwhile.", "Upload it again.", retry=True),
    ErrorCode("TOO_MANY_FILES", _FEATURES, 429, "The user's files reach their limit.", "Delete some."),
    ErrorCode("STORAGE_UNAVAILABLE", _FEATURES, 503, "The file storage does not answer, or replicas do not share it.", "Retry; operators: check `files.storage`.", retry=True),
    ErrorCode("STORAGE_FULL", _FEATURES, 507, "The file storage has no room.", "Delete files; operators: raise `files.max_size`."),
    ErrorCode("BATCH_NOT_FOUND", _FEATURES, 404, "The batch does not exist or is another user's.", "Check the id."),
    ErrorCode("TOO_MANY_BATCHES", _FEATURES, 429, "The user has 100 unfinished batches.", "Retry when one has ended.", retry=True),
    ErrorCode("ENDPOINT_NOT_FOUND", _FEATURES, 404, "No endpoint matches the URL, or the key cannot use it.", "Check the URL; operators: `fairlane endpoint list`."),
    ErrorCode("PERMIT_NEEDED", _FEATURES, 403, "The request has no valid permit.", "Request one, and send it as `X-Fairlane-Permit`.", retry=True),
    ErrorCode("PERMIT_USED", _FEATURES, 403, "The permit was used: each is for one request.", "Request another one.", retry=True),
    ErrorCode("PERMIT_EXPIRED", _FEATURES, 403, "The permit was not used in time, or its task was cancelled.", "Request another one."),
    ErrorCode("RECEIPT_INVALID", _FEATURES, 403, "The receipt is not genuine.", "Send the receipt that the check returned."),
    ErrorCode("WEBHOOK_NOT_FOUND", _FEATURES, 404, "The webhook does not exist or is another user's.", "Check the id."),
    ErrorCode("DELIVERY_NOT_FOUND", _FEATURES, 404, "The delivery does not exist or was deleted.", "List the deliveries."),
    ErrorCode("TOO_MANY_WEBHOOKS", _FEATURES, 409, "The user has as many webhooks as possible.", "Delete one."),
    ErrorCode("WEBHOOK_DISABLED", _FEATURES, 409, "The webhook is disabled.", "Enable it first."),
    # the gateway
    ErrorCode("STORE_UNAVAILABLE", _GATEWAY, 503, "Redis does not answer.", "Retry later; operators: check Redis.", retry=True),
    ErrorCode("DATABASE_UNAVAILABLE", _GATEWAY, 503, "The SQL database does not answer, and the call needs it.", "Retry later; operators: check the database.", retry=True),
    ErrorCode("OUTBOX_FULL", _GATEWAY, 503, "Too many records wait for the SQL database.", "Operators: check the database.", retry=True),
    ErrorCode("GATEWAY_STOPPING", _GATEWAY, 503, "This gateway is shutting down.", "Retry: another replica, or its successor, answers.", retry=True),
    ErrorCode("INTERNAL", _GATEWAY, 500, "A bug of the gateway.", "Report it with the gateway's log."),
    # operators
    ErrorCode("QUEUE_NOT_FOUND", _ADMIN, 404, "No queue has this name.", "Use one of `fairlane queue list`."),
    ErrorCode("WORKER_NOT_FOUND", _ADMIN, 404, "No such worker is connected.", "Use an id of `fairlane status`."),
    ErrorCode("REPLICA_SILENT", _ADMIN, 503, "The worker's replica did not confirm.", "Retry.", retry=True),
    ErrorCode("REPORT_TOO_LONG", _ADMIN, 503, "The report takes too long.", "Ask for fewer days, or for one key, user or model."),
    ErrorCode("AUDIT_MISSING", _ADMIN, 500, "The change was made, but not written to the audit log.", "Find it in the gateway's log."),
    ErrorCode("KEY_NOT_FOUND", _ADMIN, 404, "No key has this id.", "Use one of `fairlane key list`."),
    ErrorCode("KEY_EXISTS", _ADMIN, 409, "A key has or had this id.", "Use another id."),
    ErrorCode("KEY_CONFIGURED", _ADMIN, 409, "The configuration file has this key.", "Change it in the file."),
    ErrorCode("KEY_REVOKED", _ADMIN, 409, "The key is revoked permanently.", "Create another one."),
    ErrorCode("KEY_UNREADABLE", _ADMIN, 409, "A newer Fairlane wrote this key.", "Change it there."),
    ErrorCode("KEY_IN_USE", _ADMIN, 409, "A key cannot revoke itself.", "Revoke it with another admin key."),
    ErrorCode("FIRST_KEY_NOT_ADMIN", _ADMIN, 409, "The first key of a gateway must have the scope `admin`.", "Create an admin key first."),
    ErrorCode("LAST_ADMIN_KEY", _ADMIN, 409, "No other admin key would be left.", "Create another admin key first."),
    ErrorCode("TOO_MANY_KEYS", _ADMIN, 409, "The database has as many keys as possible.", "Use delegating keys for users."),
    ErrorCode("TOO_MANY_SECRETS", _ADMIN, 409, "The key has as many valid secrets as possible.", "Rotate with `keepMs` 0."),
    ErrorCode("GRANT_EXISTS", _ADMIN, 409, "A different grant has this id.", "Use a new id for each grant."),
    ErrorCode("OVERRIDE_NOT_FOUND", _ADMIN, 404, "No override has this id.", "Use one of `fairlane override list`."),
    ErrorCode("OVERRIDE_CONFLICT", _ADMIN, 409, "Another override applies to a part of the route's tasks.", "Promote it or roll it back first."),
    ErrorCode("OVERRIDE_PROMOTED", _ADMIN, 409, "The override is permanent.", "Roll it back, and create another one."),
    ErrorCode("TOO_MANY_OVERRIDES", _ADMIN, 409, "Too many overrides exist.", "Roll one back first."),
    ErrorCode("UPSTREAM_NOT_FOUND", _ADMIN, 404, "No worker serves the model through this upstream.", "Use one of `fairlane breaker list`."),
    ErrorCode("TOO_MANY_UPSTREAMS", _ADMIN, 409, "More upstreams are known than possible.", "Remove names of upstreams that no longer exist."),
    ErrorCode("ENDPOINT_EXISTS", _ADMIN, 409, "An endpoint has this name.", "Update it, or use another name."),
    ErrorCode("ENDPOINT_CONFIGURED", _ADMIN, 409, "The configuration file has this endpoint.", "Change it in the file, and reload."),
    ErrorCode("TOO_MANY_ENDPOINTS", _ADMIN, 409, "Too many endpoints exist.", "Delete one first."),
)
# fmt: on

ERROR_CODES: Mapping[str, ErrorCode] = {row.code: row for row in _ROWS}
