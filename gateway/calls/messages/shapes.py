"""What stands in a Messages request, as types, and what is said of one that does not fit. Pure.

A type has all members that are known; any other one is refused by its name. What goes on as it came stays unparsed.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from fairlane.gateway.errors import ApiError, bad_request, too_large
from fairlane.streaming.jsontext import count_parts, kind_of

MOST_PARTS = 10_000
"""Messages, blocks and tools of a request: each takes some microseconds, and the loop stands still meanwhile."""
NULL = Raw(b"null")
NOT_HERE = "cannot be said to a model here; leave it out"
_WORDS = {
    "`str`": "a text",
    "`int`": "a whole number",
    "`float`": "a number",
    "`array`": "a list",
    "`bool`": "true or false",
}


class Known(Struct, forbid_unknown_fields=True):
    """Nothing else may stand in it."""


class Block(Known, tag_field="type", kw_only=True):
    cache_control: Raw = NULL


class Text(Block, tag="text"):
    text: Raw
    citations: Raw = NULL


class Image(Block, tag="image"):
    source: Raw
    transformations: Raw = NULL


class Document(Block, tag="document"):
    source: Raw
    title: Raw = NULL
    context: Raw = NULL
    citations: Raw = NULL


class SearchResult(Block, tag="search_result"):
    source: Raw
    title: Raw
    content: Raw
    citations: Raw = NULL


class Thinking(Block, tag="thinking"):
    thinking: Raw
    signature: Raw = NULL


class RedactedThinking(Block, tag="redacted_thinking"):
    data: Raw


class ToolUse(Block, tag="tool_use"):
    id: Raw
    name: Raw
    input: Raw
    caller: Raw = NULL


class ToolResult(Block, tag="tool_result"):
    tool_use_id: Raw
    content: Raw = NULL
    is_error: bool | None = None


class Base64Source(Known, tag_field="type", tag="base64"):
    media_type: str
    data: Raw


class UrlSource(Known, tag_field="type", tag="url"):
    url: Raw


class TextSource(Known, tag_field="type", tag="text"):
    data: Raw
    media_type: str = "text/plain"


class ContentSource(Known, tag_field="type", tag="content"):
    content: Raw


class Message(Known):
    role: str
    content: Raw


class Metadata(Known):
    user_id: str | None = None


class ToolChoice(Known):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Tool(Known):
    name: Raw
    input_schema: Raw
    description: Raw = NULL
    type: str | None = None
    cache_control: Raw = NULL
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: Raw = NULL


class Typed(Struct):
    type: Any = None


class ThinkingConfig(Known):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class Format(Known):
    type: str
    json_schema: Raw = msgspec.field(name="schema", default=NULL)


class OutputConfig(Known):
    effort: str | None = None
    format: Raw = NULL


class Edit(Struct):
    type: str


class ContextManagement(Known):
    edits: list[Edit] = []


Shape = TypeVar("Shape")


class Budget:
    """How many parts a request may still have, and how long its texts may become."""

    def __init__(self, most_bytes: int) -> None:
        self._left = MOST_PARTS
        self._most_bytes = most_bytes

    def check_escaped(self, raw: Raw) -> None:
        """See whether a value fits in as a text of JSON. Raises ApiError(413), before it is made one."""
        data = bytes(raw)
        if len(data) + data.count(b'"') + data.count(b"\\") > self._most_bytes:
            raise too_large(self._most_bytes)

    def items(self, raw: Raw, decoder: msgspec.json.Decoder[list[Shape]], place: str) -> list[Shape]:
        """The items of a list, which count. Raises ApiError(400)."""
        if count_parts(raw, self._left) > self._left:
            raise refused(place, f"the request has more than {MOST_PARTS} messages, blocks and tools")
        found = read(raw, decoder, place)
        self._left -= len(found)
        return found


def read(raw: Raw, decoder: msgspec.json.Decoder[Shape], place: str) -> Shape:
    """A value of the decoder's type. Raises ApiError(400) that names the member that does not fit."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise refused(place, "is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise _misfit(str(error), place) from None


def _misfit(said: str, place: str) -> ApiError:
    """The refusal of a value of another type, in our words."""
    sentence, found, inside = said.rpartition(" - at `$")
    if found:
        place += inside.rstrip("`")
    else:
        sentence = said
    for begin, why in (
        ("Object contains unknown field `", NOT_HERE),
        ("Object missing required field `", "is missing"),
    ):
        if sentence.startswith(begin):
            return refused(f"{place}.{sentence.removeprefix(begin).rstrip('`')}", why)
    if sentence.startswith("Invalid value "):
        return refused(
            place, f"{sentence.removeprefix('Invalid value ')[:100]} cannot be said to a model here"
        )
    for word, ours in _WORDS.items():
        sentence = sentence.replace(word, ours)
    return refused(place, sentence[:1].lower() + sentence[1:300])


def refused(place: str, why: str) -> ApiError:
    """The refusal of what stands at a place of the request."""
    place = place[:200]
    return bad_request(f"{place}: {why}", place)


def text(raw: Raw, place: str) -> bytes:
    """What stands between the quotes of a text. Raises ApiError(400)."""
    if kind_of(raw) != '"':
        raise refused(place, "must be a text")
    return bytes(raw).strip()[1:-1]


def is_null(raw: Raw) -> bool:
    """Whether a member is absent or null."""
    return raw is NULL or kind_of(raw) == ""
