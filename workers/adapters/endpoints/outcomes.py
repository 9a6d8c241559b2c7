"""What an endpoint's answer, or its lack, means for the task. Pure.

| the endpoint                                        | the task                          | tried again                    |
|-----------------------------------------------------|-----------------------------------|--------------------------------|
| answers below 500, but 429                          | its result                        |                                |
| 429; 503 with `Retry-After`                         | MODEL_TOO_BUSY                    | yes: it was not done           |
| 504, 522, 524                                       | UPSTREAM_TIMEOUT                  | if its method is idempotent    |
| other 5xx, no connection, broken off before an answer | UPSTREAM_ERROR                  | the same                       |
| broken off within its answer                        | UPSTREAM_TRUNCATED                | the same                       |
| no connection in time                               | CONNECT_TIMEOUT                   | the same                       |
| no answer in time                                   | FIRST_TOKEN_TIMEOUT               | the same                       |
| an answer that does not end in time                 | TOTAL_TIMEOUT                     | the same                       |
| the time of the task is over                        | TOTAL_TIMEOUT                     | no                             |
| an answer that cannot be read                       | JSON_PARSE_FAILED                 | no                             |
| an address or a size that may not be                | ADDRESS_REFUSED, RESPONSE_TOO_LARGE | no                           |

After a 429, or a 503 with `Retry-After`, the endpoint has a cooldown for all its clients. The failure has no HTTP status: with
one, the worker would back off, although it has other endpoints to call.
"""

import base64
import binascii
import contextlib
import re
from typing import Any

from fairlane.workers.adapters.endpoints.calls import Call
from fairlane.workers.adapters.endpoints.client import Answer, too_large
from fairlane.workers.adapters.endpoints.headers import incoming
from fairlane.workers.adapters.failures import DEFAULT_PAUSE_S, TIMEOUT_STATUSES, read_error
from fairlane.workers.decoding import TooLargeError, coding_of, decode
from fairlane.workers.sdk.backoff import requested_pause
from fairlane.workers.sdk.errors import TaskError, shorten

MAX_SAID_BYTES = 64 * 1024
"""Of a failure's body, that is looked at for its sentence."""
SECRET_CHARS = 8
"""Words of headers of this length can be secrets, and are kept out of messages."""
_SIGNS = re.compile(r"[\s=;,:\"']+")
_NO_BODY = frozenset({204, 206, 304})
"""Answers without a body, and parts of one, which cannot be made readable by themselves."""


def result(call: Call, answer: Answer) -> dict[str, Any]:
    """The task's result. Raise TaskError where the answer is a failure, or too large once it is readable."""
    pause_s = requested_pause(answer.headers)
    if answer.status == 429 or (answer.status == 503 and pause_s is not None):
        pause_s = DEFAULT_PAUSE_S if pause_s is None else pause_s
        raise TaskError(
            "MODEL_TOO_BUSY", _sentence(call, answer), retryable=True, retry_after_ms=round(pause_s * 1000)
        )
    if answer.status >= 500:
        code = "UPSTREAM_TIMEOUT" if answer.status in TIMEOUT_STATUSES else "UPSTREAM_ERROR"
        status = answer.status if answer.status < 600 else None
        raise TaskError(code, _sentence(call, answer), http_status=status)
    body, decoded = _readable(call, answer, call.max_response_bytes)
    outcome: dict[str, Any] = {"status": answer.status, "headers": incoming(answer.headers, decoded=decoded)}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text:  # which is no text to databases
        return {**outcome, "bodyBase64": base64.b64encode(body).decode()}
    return {**outcome, "body": text}


def _readable(call: Call, answer: Answer, limit: int) -> tuple[bytes, bool]:
    """The body, and whether it had to be made readable for that."""
    coding = coding_of(answer.headers.get_list("content-encoding"))
    if call.method == "HEAD" or answer.status in _NO_BODY or not coding:
        return answer.body, False
    try:
        return decode(coding, answer.body, limit), True
    except TooLargeError as error:
        raise too_large(limit) from error
    except ValueError as error:
        raise TaskError("JSON_PARSE_FAILED", f"The endpoint's answer cannot be read: {error}.") from error


def _secrets(call: Call) -> list[str]:
    """Return the secrets in the call's headers: words, parts of them between signs (`session=…;`), and decoded `Basic`
    credentials; long ones first, as others may be parts of them."""
    secrets = [value for _, value in call.headers]
    for value in list(secrets):
        scheme, _, encoded = value.partition(" ")
        if scheme.lower() == "basic":
            with contextlib.suppress(binascii.Error, ValueError):
                secrets.append(base64.b64decode(encoded.strip(), validate=True).decode("latin-1"))
    words = {word for value in secrets for word in (*value.split(), *_SIGNS.split(value))}
    return sorted((word for word in words if len(word) >= SECRET_CHARS), key=len, reverse=True)


def _sentence(call: Call, answer: Answer) -> str:
    """Return the endpoint's message about a failure, without the credentials of the call."""
    try:
        said = read_error(_readable(call, answer, MAX_SAID_BYTES)[0][:MAX_SAID_BYTES]).message
    except TaskError:
        said = ""
    for word in _secrets(call):
        said = said.replace(word, "***")
    sentence = f"The endpoint answered {answer.status}"
    return shorten(f"{sentence}: {said}" if said else f"{sentence}.")
