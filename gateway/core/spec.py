"""Build a task from a request: read the gateway's own options, and leave the payload as it is. Pure.

The worker gets the bytes of the request without the gateway's fields.
"""

import contextlib
import math
import re
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.gateway.accounts.callers import Caller, forbidden
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import RawObject, encode_members, has_image, value_of
from fairlane.gateway.core.output_size import (
    MAX_CHOICES,
    ONE_ANSWER,
    SIZES,
    OutputCap,
    cap_output_tokens,
    enforce_equal,
    enforce_max,
    output_size,
    reject_provider_files,
)
from fairlane.gateway.errors import ApiError, TokenForbids, bad_request
from fairlane.gateway.routing.plans import Plan
from fairlane.gateway.routing.routes import Rule
from fairlane.gateway.settings import MODES, Settings
from fairlane.queues.ids import in_pool, new_task_id
from fairlane.queues.keys import ENDPOINT, is_reserved
from fairlane.queues.tasks import TaskSpec, only_set
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.structured.requirements import wanted_of
from fairlane.workers.tasktypes import FILES, MEDIA

OWN_FIELDS = (
    "async",
    "timeout",
    "mode",
    "priority",
    "onDisconnect",
    "resultTtlMs",
    "metadata",
    "idempotencyKey",
    "repair",
)
"""Fields of a native body that are the gateway's; everything else is the worker's."""
OWN_MEMBERS = frozenset(OWN_FIELDS)
_OPTIONS = OWN_MEMBERS - {"async", "idempotencyKey"}
"""The options that `read_options` reads."""
_FORMATS = frozenset({"response_format", "text"})
"""Members that may set the format of the text."""

OPENAI_TYPES = frozenset({"openaiLike", "openaiCompletion", "openaiEmbedding", *MEDIA})
"""Types of tasks whose payload is the body of one of OpenAI's calls: there `model` is the model."""

WITHOUT_BOUND = frozenset({"openaiEmbedding", *MEDIA})
"""OpenAI's types whose output has no bound in tokens."""

MAX_MODEL_CHARS = 200
MAX_CHECKED = 1000
"""Valid names of models that are remembered, so that most tasks need no check."""
MAX_METADATA_BYTES = 4096
MAX_ESTIMATED_INPUT = 200_000
MAX_TYPE_CHARS = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
READER_LEASE_MS = 15_000
"""The least linger of a task whose client cannot resume: its disconnect is noticed, this is for the loss of a whole replica."""
MIN_LINGER_MS = 3000
"""The least linger of others: readers renew it several times within it, on a clock of seconds."""


class Options(msgspec.Struct):
    """The options of a task, without its payload. None = not given."""

    wait: bool = True
    """The client waits for the answer (sync or stream)."""
    stream: bool = False
    sets_stream: bool = False
    """The request sets `stream`, which overrides its route."""
    timeout: Any = None
    mode: Any = None
    priority: Any = None
    on_disconnect: Any = None
    result_ttl_ms: Any = None
    metadata: bytes = b""
    repair: Any = None
    """Retry an answer that does not match its schema."""
    template: str = ""
    """The template of the payload: name, version and locale, as in a task's record."""
    on_v1: bool = False
    """The client uses OpenAI's API: it cannot resume, and waits for long."""


def read_options(fields: RawObject, *, wait: bool, stream: bool) -> Options:
    """Return the options that a native body sets. Raise ApiError(400)."""
    if _OPTIONS.isdisjoint(fields):
        return Options(wait=wait, stream=stream)
    return Options(
        wait=wait,
        stream=stream,
        timeout=value_of(fields, "timeout"),
        mode=value_of(fields, "mode"),
        priority=value_of(fields, "priority"),
        on_disconnect=value_of(fields, "onDisconnect"),
        result_ttl_ms=value_of(fields, "resultTtlMs"),
        metadata=_metadata(fields),
        repair=value_of(fields, "repair"),
    )


def _metadata(fields: RawObject) -> bytes:
    """Return the metadata of a native body as it came; b"" for none."""
    raw = fields.get("metadata")
    if raw is None or not kind_of(raw):
        return b""
    value_of(fields, "metadata")  # what is echoed must be readable
    return bytes(raw).strip()


def read_model(fields: RawObject, default: str | None) -> str:
    """Return the model's name; `default` when the body names none (None: it must)."""
    model = value_of(fields, "model")
    if model is None:
        if default is None:
            raise bad_request("You must provide a model parameter", "model")
        model = default
    elif not isinstance(model, str):
        raise bad_request("model must be a string", "model")
    else:
        _check_requested(model)
    return model


@lru_cache(MAX_CHECKED)
def _check_requested(model: str) -> None:
    """Raise ApiError(400) for a name that no client's body may give."""
    check_model_name(model)
    if is_reserved(model):
        sentence = (
            f"A name that begins with {ENDPOINT} is an endpoint's: submit a task of type http, or permit"
        )
        raise bad_request(sentence, "model")


def place_model(
    fields: RawObject, task_type: str, requested: str, model: str, *, routed: bool
) -> tuple[bool, bool]:
    """Put a task's model into its payload if it names none, or take it out if it is put in at the grant (`routed`: another model
    may run it). Return whether the payload changed, and whether the model is put in later.

    Raise ApiError(400) if the payload names another model, in upper or lower case (servers written in Go ignore case): a version
    1 worker may run the payload's model, while the task is admitted, limited and paid as `model`.
    `requested`: the name that the payload may have. `model`: '' leaves a payload without a model as it is.
    """
    named, of_openai = False, task_type in OPENAI_TYPES
    for member in fields:
        if len(member) == 5 and member.casefold() == "model":
            value = value_of(fields, member)
            if isinstance(value, str):
                if value != requested:
                    sentence = f"The payload's {member} must be the task's model ({requested}): name it once, or the same twice"
                    raise bad_request(sentence, "model")
                named = named or member == "model"
    if routed and (named or of_openai):
        for member in [member for member in fields if member.casefold() == "model"]:
            del fields[member]
        return True, True
    if of_openai and model and not named:
        fields["model"] = Raw(msgspec.json.encode(model))
        return True, False
    return False, False


def check_model_name(model: str) -> None:
    """Raise ApiError(400) for what cannot be the name of a model."""
    if not is_name(model, MAX_MODEL_CHARS) or model == "*":
        raise bad_request(f"model must be a name of 1 to {MAX_MODEL_CHARS} characters", "model")


def read_type(fields: RawObject) -> str:
    """Return the type of a task of any type."""
    task_type = value_of(fields, "type")
    if not isinstance(task_type, str) or not is_name(task_type, MAX_TYPE_CHARS):
        raise bad_request(
            f"type must be the task's type, a name of 1 to {MAX_TYPE_CHARS} characters (or name a template)",
            "type",
        )
    return task_type


def text_bytes(payload: bytes, fields: RawObject) -> int:
    """Return the bytes of a payload with these members that are not in files: models count tokens of text only."""
    files = sum(len(memoryview(raw)) for name, raw in fields.items() if name in FILES)
    return max(len(payload) - files, 0)


def is_name(text: str, most: int) -> bool:
    """Return whether a text can be a name: 1 to `most` characters, no control character and no line break."""
    return 0 < len(text) <= most and not _CONTROL.search(text)


def read_flag(fields: RawObject, name: str) -> bool:
    """Return a boolean field; absent and null are false."""
    value = value_of(fields, name) if name in fields else None
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false", name)
    return value


def check_choices(fields: RawObject) -> None:
    """Raise ApiError(400), in OpenAI's words, for an `n` that it would not take: each choice costs an upstream a slot."""
    value = value_of(fields, "n")
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request("Invalid type for 'n': expected an integer.", "n")
    if value > MAX_CHOICES:
        sentence = f"integer above maximum value. Expected a value <= {MAX_CHOICES}"
    elif value < 1:
        sentence = "integer below minimum value. Expected a value >= 1"
    else:
        return
    raise bad_request(f"Invalid 'n': {sentence}, but got {value} instead.", "n")


def build_openai_task(
    current: ActiveConfig,
    caller: Caller,
    task_type: str,
    body: bytes,
    fields: RawObject,
    options: Options,
    *,
    subject: str = "",
    task_id: str = "",
) -> TaskSpec:
    """Return the task of a /v1 call, or of a line of a batch: of an OpenAI body, whose members are `fields`, for the caller that
    `Caller.named` returned.

    `subject`: as `ActiveConfig.plan` takes it; `task_id`: its id; '': a new one for both. Raise ApiError.
    """
    name = read_model(fields, caller.only_model if caller.claims else None)
    if not caller.may_use(name):
        raise forbidden(caller, name)
    task_id = task_id or new_task_id()
    plan = current.plan(caller, name, partial(has_image, fields), subject or task_id)
    builder = TaskBuilder(current.settings, caller, task_id, task_type, options, tell_model=True)
    return builder.task(plan, body, fields)


class TaskBuilder(msgspec.Struct, frozen=True):
    """The parts of a task that do not depend on its plan."""

    settings: Settings
    caller: Caller
    task_id: str
    task_type: str
    options: Options
    own: tuple[str, ...] = ()
    """Members that are no part of the payload."""
    tell_model: bool = False
    """Write the model into an OpenAI payload that names none, so that a server that reads the payload alone runs no other."""

    def task(self, plan: Plan, payload: bytes, fields: RawObject) -> TaskSpec:
        """Return the task. Raise ApiError(400) for invalid options, and (403) for those that a token does not allow."""
        options, claims, other = self.options, self.caller.claims, plan.downgrade
        if claims is not None:
            options.priority = enforce_equal("priority", options.priority, claims.priority)
            options.mode = enforce_equal("mode", options.mode, claims.mode)
            options.timeout = enforce_max("timeout", options.timeout, claims.timeout)
            reject_provider_files(payload)
        spare = dict(fields) if other is not None and other.rule else fields
        task = self._of_plan(plan, payload, fields)
        if other is not None:
            with contextlib.suppress(
                ApiError
            ):  # more output than the tier allows: then it is rejected if it cannot be paid
                task.downgrade = self._of_plan(other, payload if other.rule else task.payload, spare)
                task.downgrade.extras.pop("quota", None)
        return task

    def _of_plan(self, plan: Plan, payload: bytes, fields: RawObject) -> TaskSpec:
        """Return the task of one plan."""
        settings, caller, options, task_type = self.settings, self.caller, self.options, self.task_type
        rule = plan.rule or NO_RULE
        terms = plan.terms
        payload, model_omitted = self._payload(plan, payload, fields)
        waits = options.wait
        mode = options.mode
        if mode is None:
            usual = "stream" if waits or options.stream else "batch"
            mode = rule.mode or ("vision" if has_image(fields) else usual)
        elif mode not in MODES:
            raise bad_request(f"mode must be one of {', '.join(MODES)}", "mode")
        timeout = None if options.timeout is None else _timeout(settings, options.timeout)
        kept = options.result_ttl_ms
        if rule.timeout_ms:
            timeout = min(timeout or rule.timeout_ms, rule.timeout_ms)
        run_ms = settings.worker_timeout_ms or 0
        wait_ms = 0  # the scheduler knows what the queue says, which may change at any time
        if timeout is None:
            if not waits:
                timeout = 0
                wait_ms = settings.tuning.pending_ttl_ms
                run_ms = settings.run_limit_ms
            elif options.stream or options.on_v1:
                timeout = settings.max_task_timeout_ms
            else:
                timeout = settings.task_timeout_ms
        output = ONE_ANSWER if SIZES.isdisjoint(fields) else output_size(fields)
        answer = ""
        if task_type == "openaiLike" and not _FORMATS.isdisjoint(fields) and kind_of(payload) == "{":
            answer = answer_format(settings.structured_output, fields, templated=bool(options.template))
        repair = False
        # an invalid `repair` is rejected, whatever the format of the answer
        if answer or options.repair is not None:
            repair = _repair(settings, options.repair) and answer != ""
        text = len(payload) if task_type not in MEDIA else text_bytes(payload, fields)
        archive_ms = 0 if waits or settings.archive == "off" else settings.archive_ttl_ms
        paid = bool(terms.price or plan.fallbacks) and not has_image(fields)
        limited = caller.key_limits or caller.user_limits
        extras = {}
        if archive_ms or limited or any(terms) or plan.fallbacks or answer or caller.uses:
            extras = only_set(
                max_input=text // 4 if paid and text // 4 > MAX_ESTIMATED_INPUT else 0,
                archive=archive_ms,
                keep_request=bool(archive_ms) and settings.archive == "requests",
                limits=(caller.key_limits, caller.user_limits) if limited else None,
                price=terms.price,
                quota=terms.quota,
                token_use=caller.uses,
                fallbacks=plan.fallbacks,
                fallback_after=rule.fallback_after_ms if plan.fallbacks else 0,
                schema=answer,
                repair=repair,
            )
        return TaskSpec(
            id=in_pool(self.task_id, plan.pool) if plan.pool else self.task_id,
            model=plan.model,
            queue=settings.queue_for(plan.tier, mode),
            user=caller.user,
            key=caller.key_id,
            payload=payload,
            task_type=task_type,
            priority=0 if options.priority is None else _priority(options.priority),
            weight=caller.weight if caller.weight != 1 else 0,
            estimated_input=min(text // 4, MAX_ESTIMATED_INPUT),
            max_output=output.most,
            answers=output.answers,
            timeout_ms=timeout,
            wait_ms=wait_ms,
            run_ms=run_ms,
            keep_ms=settings.task_result_ttl_ms if kept is None else _keep(settings, kept),
            linger_ms=_disconnect_grace(settings, options),
            waiting=waits,
            stream=options.stream,
            metadata=check_metadata(options.metadata).decode() if options.metadata else "",
            asked=plan.asked if plan.rule else "",
            template=options.template,
            model_omitted=model_omitted,
            extras=extras,
        )

    def _payload(self, plan: Plan, payload: bytes, fields: RawObject) -> tuple[bytes, bool]:
        """Return the payload as it is stored, and whether the model is put in at the grant, as it may fall back before."""
        claims, rule = self.caller.claims, plan.rule
        if not payload.startswith(b"{") and kind_of(payload) != "{":
            if claims is not None and claims.most_output:
                raise TokenForbids(
                    "With this token the payload must be an object: its output is bounded there", "payload"
                )
            return payload, False
        # rebuilt if a limit relies on what was checked: with each member once, no server reads another value
        rebuild = claims is not None or bool(plan.terms.price) or "*" not in self.caller.models
        model = plan.model if self.tell_model else ""
        placed, model_omitted = place_model(
            fields, self.task_type, plan.asked, model, routed=rule is not None
        )
        cap = self._cap(rule, fields) if rule is not None or claims is not None else None
        if cap is not None:
            cap_output_tokens(cap, fields)
        rebuild = rebuild or placed or cap is not None
        return (encode_members(fields, self.own) if rebuild else payload), model_omitted

    def _cap(self, rule: Rule | None, fields: RawObject) -> OutputCap | None:
        """Return how much output is allowed: by the token or by the route, whichever is less."""
        if self.task_type in WITHOUT_BOUND and self.options.on_v1:  # elsewhere the client names the type
            return None
        claims = self.caller.claims
        claimed = claims.most_output if claims is not None else None
        if (
            rule is not None
            and rule.max_output_tokens
            and (not claimed or rule.max_output_tokens < claimed[1])
        ):
            name = claimed[0] if claimed else _bound_of(fields)
            return OutputCap(name, rule.max_output_tokens, f"The route {rule.route}", bad_request)
        return OutputCap(claimed[0], claimed[1], "The token", TokenForbids) if claimed else None


NO_RULE = Rule("", "")


def _bound_of(fields: RawObject) -> str:
    """Return the name under which a body bounds its output: the one that it uses, or the one that most servers know."""
    return "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"


def answer_format(checks: str, fields: RawObject, *, templated: bool) -> str:
    """Return the format of the text that the body requests, packed (`wanted_of`); a template's is enforced unless checks are off.
    `checks`: the setting `structured_output`. Raise ApiError(400)."""
    if checks == "off":
        return ""
    try:
        return wanted_of(fields, unstrict=templated or checks == "all")
    except ValueError as error:
        raise bad_schema(str(error)) from None


def _repair(settings: Settings, wish: Any) -> bool:
    """Return whether an answer that does not match is retried: by the request, else by the settings."""
    if wish is None:
        return settings.structured_output == "repair"
    if not isinstance(wish, bool):
        raise bad_request("repair must be true or false", "repair")
    return wish


def bad_schema(why: str) -> ApiError:
    """Return the error of a schema that answers cannot be compared with."""
    return bad_request(f"response_format.json_schema.schema cannot be checked: {why}", "response_format")


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number, of any size; true and false are not."""
    if isinstance(value, int):
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)


def _timeout(settings: Settings, value: Any) -> int:
    if not _is_number(value):
        raise bad_request("timeout must be a number of milliseconds", "timeout")
    return int(min(max(value, settings.min_task_timeout_ms), settings.max_task_timeout_ms))


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 5:
        raise bad_request("priority must be a whole number from 0 to 5", "priority")
    return value


def _keep(settings: Settings, value: Any) -> int:
    if not _is_number(value) or value <= 0:
        raise bad_request("resultTtlMs must be a positive number of milliseconds", "resultTtlMs")
    return int(min(max(value, 1000), settings.tuning.max_result_ttl_ms))


def _disconnect_grace(settings: Settings, options: Options) -> int:
    """Return how long the task outlives its last reader; 0 = for ever. By default a task ends with its client if that waits."""
    wish = options.on_disconnect
    if wish not in (None, "cancel", "continue"):
        raise bad_request("onDisconnect must be cancel or continue", "onDisconnect")
    if wish == "continue" or (wish is None and not options.wait):
        return 0
    resumable = options.stream and not options.on_v1
    return max(settings.tuning.linger_ms, MIN_LINGER_MS if resumable else READER_LEASE_MS)


def check_metadata(raw: bytes) -> bytes:
    """Return the metadata. Raise ApiError(400) if they are too large."""
    if len(raw) > MAX_METADATA_BYTES:
        raise bad_request(f"metadata may hold at most {MAX_METADATA_BYTES} bytes of JSON", "metadata")
    return raw
