"""The request that asks a model again for an answer that does not match its schema. Pure.

It is the first request with two more messages: the model's own answer, and what is wrong with it. In a Responses request they are
two more items of its input.
"""

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import join_object, kind_of, members

MAX_PAYLOAD_BYTES = 4 << 20
"""Of a request: a larger one is not put together again, which would take the gateway too long."""
MAX_ANSWER_CHARS = 32 * 1024
"""Of the answer as the model gets it back. A longer one is cut in its middle."""
MAX_WORDS_CHARS = 1000
_TAIL_CHARS = 8 * 1024
_ASKS = (
    "Your answer does not match its JSON schema: {}\n"
    "Answer again with the whole JSON value, corrected. Write that JSON alone: no other words, no code fence."
)
_SPACES = b" \t\r\n"


def repair_request(payload: bytes, answer: bytes, wrong: str) -> bytes | None:
    """A chat's or Responses' request that asks for its answer again; None where the payload has no list of messages or items, or
    is too large.

    `answer`: its text, a JSON string; `wrong`: the place, and what was expected there. What stands in the request stays as it is.
    """
    fields = members(payload) if len(payload) <= MAX_PAYLOAD_BYTES else None
    name = "messages" if fields is None or "messages" in fields else "input"
    if fields is None or kind_of(fields.get(name)) != "[":
        return None
    # (no regular expression looks for the end: what stands before it is a caller's, and may be megabytes of spaces)
    head = bytes(fields[name]).strip(_SPACES)[:-1].rstrip(_SPACES)
    messages = ("assistant", shortened(msgspec.json.decode(answer, type=str))), ("user", ask_again(wrong))
    more = [msgspec.json.encode({"role": role, "content": text}) for role, text in messages]
    pieces = more if head == b"[" else [b"", *more]
    return join_object({**fields, name: Raw(head + b",".join(pieces) + b"]")}.items())


def ask_again(wrong: str) -> str:
    """Return the message that names the error to the model."""
    return _ASKS.format(wrong[:MAX_WORDS_CHARS])


def shortened(answer: str) -> str:
    """An answer of at most MAX_ANSWER_CHARS and a few words: its beginning and its end."""
    left_out = len(answer) - MAX_ANSWER_CHARS
    if left_out <= 0:
        return answer
    head = MAX_ANSWER_CHARS - _TAIL_CHARS
    return f"{answer[:head]}\n[… {left_out} characters are left out here …]\n{answer[-_TAIL_CHARS:]}"
