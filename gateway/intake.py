"""From a request to a task: reads what concerns the gateway, leaves the payload alone, and says what is wrong in a sentence.

Pure. The body is parsed once to be checked and looked into; what goes to the worker are the bytes that came, less the fields
that are ours.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import bad_request
from fairlane.gateway.settings import MODES, Settings
from fairlane.queues.tasks import TaskSpec

OWN_FIELDS = ("async", "timeout", "mode", "priority", "onDisconnect", "resultTtlMs", "metadata")
"""Fields of a native body that are the gateway's; everything else is the worker's."""

MAX_MODEL_CHARS = 200
MAX_METADATA_BYTES = 4096
MAX_ESTIMATED_INPUT = 200_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
READER_LEASE_MS = 15_000
"""The least linger of a task whose caller cannot come back: its end shows at once, this is for the loss of a whole replica."""
MIN_LINGER_MS = 3000
"""The least linger of others: readers renew it several times within it, on a clock of seconds."""
_IMAGE_TYPES = frozenset({"image_url", "image", "input_image"})

_any = msgspec.json.Decoder()
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may say about a task, beside its payload. None = not said."""

    wait: bool = True
    """The caller waits for the answer (sync or stream)."""
    stream: bool = False
    timeout: Any = None
    mode: Any = None
    priority: Any = None
    on_disconnect: Any = None
    result_ttl_ms: Any = None
    metadata: bytes = b""
    at_once: bool = False
    """A caller who leaves has left for good: its connection cannot be resumed."""


def parse_object(body: bytes, what: str = "The body") -> dict[str, Any]:
    """The JSON as a dict. Raises ApiError(400) with what is wrong: malformed, not an object, out of range.

    `what` begins its sentences.
    """
    try:
        value = _any.decode(body)
        if not body.isascii():
            body.decode()
    except RecursionError:
        raise bad_request(f"{what} is nested too deeply") from None
    except UnicodeDecodeError:
        raise bad_request(f"{what} is not valid UTF-8") from None
    except msgspec.ValidationError as error:
        raise bad_request(f"{what} holds a number that is out of range: {error}") from None
    except msgspec.DecodeError as error:
        if not body.strip():
            raise bad_request(f"{what} is empty; a JSON object is expected") from None
        raise bad_request(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be a JSON object")
    return value


def split_payload(body: bytes, fields: dict[str, Any]) -> tuple[bytes, bytes]:
    """(payload, metadata): the body without our own fields, its other members byte for byte."""
    if not any(name in fields for name in OWN_FIELDS):
        return body, b""
    members = _raw.decode(body)
    metadata = bytes(members["metadata"]) if fields.get("metadata") is not None else b""
    pairs = (
        b"%b:%b" % (msgspec.json.encode(name), bytes(value))
        for name, value in members.items()
        if name not in OWN_FIELDS
    )
    return b"{" + b",".join(pairs) + b"}", metadata


def read_model(fields: dict[str, Any], default: str | None) -> str:
    """The model's name; `default` when the body names none (None: it must)."""
    model = fields.get("model")
    if model is None:
        if default is None:
            raise bad_request("You must provide a model parameter", "model")
        return default
    if not isinstance(model, str):
        raise bad_request("model must be a string", "model")
    check_model_name(model)
    return model


def check_model_name(model: str) -> None:
    """Raise ApiError(400) for what cannot be the name of a model."""
    if not model or len(model) > MAX_MODEL_CHARS or _CONTROL.search(model) or model == "*":
        raise bad_request(f"model must be a name of 1 to {MAX_MODEL_CHARS} characters", "model")


def read_flag(fields: dict[str, Any], name: str) -> bool:
    """A boolean field; absent and null are false."""
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false", name)
    return value


def has_image(fields: dict[str, Any]) -> bool:
    """True when the messages hold an image."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else None
                if isinstance(kind, str) and kind in _IMAGE_TYPES:
                    return True
    return False


def make_task(
    settings: Settings,
    caller: Caller,
    *,
    task_id: str,
    task_type: str,
    model: str,
    payload: bytes,
    fields: dict[str, Any],
    options: Options,
) -> TaskSpec:
    """A task as the scheduler takes it. Raises ApiError(400) for options that make no sense."""
    mode = _mode(options, fields)
    queue = settings.queue_for(caller.tier, mode)
    waits = options.wait
    timeout = _timeout(settings, options.timeout)
    run_ms = settings.worker_timeout_ms or 0
    wait_ms = 0  # the scheduler knows what the queue says, which may change at any time
    if timeout is None:
        if not waits:
            timeout = 0
            wait_ms = settings.pending_ttl_ms
            run_ms = settings.run_limit_ms
        elif options.stream:
            timeout = settings.max_task_timeout_ms
        else:
            timeout = settings.task_timeout_ms
    return TaskSpec(
        id=task_id,
        model=model,
        queue=queue,
        user=caller.user,
        key=caller.key_id,
        payload=payload,
        task_type=task_type,
        priority=_priority(options.priority),
        weight=caller.weight,
        estimated_input=min(len(payload) // 4, MAX_ESTIMATED_INPUT),
        max_output=_max_output(fields),
        timeout_ms=timeout,
        wait_ms=wait_ms,
        run_ms=run_ms,
        keep_ms=_keep(settings, options.result_ttl_ms),
        linger_ms=_linger(settings, options),
        waiting=waits,
        stream=options.stream,
        follow=waits,
        metadata=_metadata(options.metadata),
    )


def _mode(options: Options, fields: dict[str, Any]) -> str:
    mode = options.mode
    if mode is None:
        if has_image(fields):
            return "vision"
        return "stream" if options.wait or options.stream else "batch"
    if mode not in MODES:
        raise bad_request(f"mode must be one of {', '.join(MODES)}", "mode")
    return str(mode)


def _is_number(value: Any) -> bool:
    """A finite number, of any size; true and false are none."""
    if isinstance(value, int):
        return not isinstance(value, bool)
    return isinstance(value, float) and math.isfinite(value)


def _timeout(settings: Settings, value: Any) -> int | None:
    if value is None:
        return None
    if not _is_number(value):
        raise bad_request("timeout must be a number of milliseconds", "timeout")
    return int(min(max(value, settings.min_task_timeout_ms), settings.max_task_timeout_ms))


def _priority(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 5:
        raise bad_request("priority must be a whole number from 0 to 5", "priority")
    return value


def _keep(settings: Settings, value: Any) -> int:
    if value is None:
        return settings.task_result_ttl_ms
    if not _is_number(value) or value <= 0:
        raise bad_request("resultTtlMs must be a positive number of milliseconds", "resultTtlMs")
    return int(min(max(value, 1000), settings.max_result_ttl_ms))


def _cancels(options: Options) -> bool:
    """Whether the task ends when its caller leaves: those who wait do, unless they say otherwise."""
    wish = options.on_disconnect
    if wish is None:
        return options.wait
    if wish not in ("cancel", "continue"):
        raise bad_request("onDisconnect must be cancel or continue", "onDisconnect")
    return bool(wish == "cancel")


def _linger(settings: Settings, options: Options) -> int:
    """How long the task outlives its last reader; 0 = for ever."""
    if not _cancels(options):
        return 0
    resumable = options.stream and not options.at_once
    return max(settings.linger_ms, MIN_LINGER_MS if resumable else READER_LEASE_MS)


def _max_output(fields: dict[str, Any]) -> int:
    most = 0
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10_000_000:
            most = value
            break
    choices = fields.get("n")
    if most and isinstance(choices, int) and 1 < choices <= 128:
        most *= choices
    return most


def _metadata(raw: bytes) -> bytes:
    if len(raw) > MAX_METADATA_BYTES:
        raise bad_request(f"metadata may hold at most {MAX_METADATA_BYTES} bytes of JSON", "metadata")
    return raw
