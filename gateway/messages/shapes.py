"""The types of a Messages request. Pure."""

from msgspec import Raw, Struct, field

from fairlane.gateway.openai.shapes import NULL, StrictStruct


class Block(StrictStruct, tag_field="type", kw_only=True):
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


class ToolReference(Block, tag="tool_reference"):
    """A tool that the client found for the model, which is offered all tools."""

    tool_name: Raw


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


class Base64Source(StrictStruct, tag_field="type", tag="base64"):
    media_type: str
    data: Raw


class UrlSource(StrictStruct, tag_field="type", tag="url"):
    url: Raw


class TextSource(StrictStruct, tag_field="type", tag="text"):
    data: Raw
    media_type: str = "text/plain"


class ContentSource(StrictStruct, tag_field="type", tag="content"):
    content: Raw


class Message(StrictStruct):
    role: str
    content: Raw = NULL


class Metadata(StrictStruct):
    user_id: str | None = None


class ToolChoice(StrictStruct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Tool(StrictStruct):
    name: Raw
    input_schema: Raw
    description: Raw = NULL
    type: str | None = None
    cache_control: Raw = NULL
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: Raw = NULL
    input_examples: Raw = NULL


class ThinkingConfig(StrictStruct):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class Format(StrictStruct):
    type: str
    json_schema: Raw = field(name="schema", default=NULL)


class OutputConfig(StrictStruct):
    effort: str | None = None
    format: Raw = NULL


class Edit(Struct):
    type: str


class ContextManagement(StrictStruct):
    edits: Raw = NULL
