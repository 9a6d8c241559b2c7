"""The types of a Responses request. Pure."""

from msgspec import Raw, Struct, field

from fairlane.gateway.openai.shapes import NULL, StrictStruct

ROLES = ("user", "assistant", "system", "developer")


class Kind(Struct):
    """The members that identify an item: messages and references may come without `type`."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


# ---- items ----------


class Item(StrictStruct, kw_only=True):
    """The members here are bookkeeping: a model sees none of them. The last one is Codex's."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    created_by: Raw = NULL
    metadata: Raw = NULL
    internal_chat_message_metadata_passthrough: Raw = NULL


class Message(Item, kw_only=True):
    role: str
    content: Raw = NULL
    phase: str | None = None


class Called(Item, kw_only=True):
    """An item of a tool, with its caller."""

    call_id: Raw
    caller: Raw = NULL
    namespace: str | None = None
    is_async: bool | None = field(name="async", default=None)


class FunctionCall(Called, kw_only=True):
    name: str
    arguments: Raw


class CustomCall(Called, kw_only=True):
    name: str
    input: Raw


class SearchCall(Called, kw_only=True):
    arguments: Raw
    execution: str | None = None


class CallOutput(Called, kw_only=True):
    """The result of a function or of a custom tool."""

    output: Raw = NULL
    name: Raw = NULL


class SearchOutput(Called, kw_only=True):
    tools: Raw
    execution: str | None = None


class AdditionalTools(Item, kw_only=True):
    tools: Raw
    role: str | None = None


class Reasoning(Item, kw_only=True):
    summary: Raw = NULL
    content: Raw = NULL
    encrypted_content: str | None = None


class Reference(Item):
    pass


# ---- parts of their content ----------


class Part(StrictStruct, tag_field="type", kw_only=True):
    prompt_cache_breakpoint: Raw = NULL


class InputText(Part, tag="input_text"):
    text: Raw


class InputImage(Part, tag="input_image"):
    image_url: Raw = NULL
    file_id: Raw = NULL
    detail: str | None = None


class InputFile(Part, tag="input_file"):
    file_data: Raw = NULL
    filename: Raw = NULL
    file_id: Raw = NULL
    file_url: Raw = NULL
    detail: str | None = None


class Sound(StrictStruct):
    data: Raw
    format: Raw


class InputAudio(Part, tag="input_audio"):
    input_audio: Sound


class OutputText(Part, tag="output_text"):
    text: Raw
    annotations: Raw = NULL
    logprobs: Raw = NULL


class Refusal(Part, tag="refusal"):
    refusal: Raw


class ReasoningText(StrictStruct, tag_field="type", tag="reasoning_text"):
    text: Raw


class SummaryText(StrictStruct, tag_field="type", tag="summary_text"):
    text: Raw


# ---- what else a request says ----------


class ClientTool(StrictStruct, kw_only=True):
    """A tool that the client runs. `defer_loading` is ignored, as a model is offered all tools, and so is `output_schema`."""

    type: str
    name: Raw
    description: Raw = NULL
    defer_loading: bool | None = None
    allowed_callers: Raw = NULL
    is_async: bool | None = field(name="async", default=None)


class Tool(ClientTool, kw_only=True):
    parameters: Raw = NULL
    strict: bool | None = None
    output_schema: Raw = NULL


class Custom(ClientTool, kw_only=True):
    format: Raw = NULL


class CustomFormat(StrictStruct):
    type: str
    syntax: str = ""
    definition: Raw = NULL


class Namespace(StrictStruct):
    type: str
    name: str
    tools: Raw
    description: Raw = NULL


class Search(StrictStruct):
    type: str
    execution: str | None = None
    description: Raw = NULL
    parameters: Raw = NULL


class WebSearch(Struct):
    external_web_access: bool | None = None


class Named(StrictStruct, kw_only=True):
    type: str
    name: str | None = None
    namespace: str | None = None


class Choice(Named, kw_only=True):
    """`function` or `custom` with its name, or `allowed_tools`."""

    mode: str | None = None
    tools: Raw = NULL


class Text(StrictStruct):
    format: Raw = NULL
    verbosity: str | None = None


class Format(StrictStruct):
    type: str
    name: Raw = NULL
    json_schema: Raw = field(name="schema", default=NULL)
    strict: bool | None = None
    description: Raw = NULL


class Thinking(StrictStruct):
    """`reasoning` of a request."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class StreamOptions(StrictStruct):
    include_obfuscation: bool | None = None
