"""The types of a Responses request. Pure."""

from msgspec import Raw, Struct, field

from fairlane.gateway.calls.shapes import NULL, StrictStruct

ROLES = ("user", "assistant", "system", "developer")


class Kind(Struct):
    """The members that identify an item: messages and references may come without `type`."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


# ---- items ----------


class Item(StrictStruct, kw_only=True):
    """`id` and `status` are bookkeeping: a model sees neither."""

    type: str | None = None
    id: str | None = None
    status: str | None = None


class Message(Item, kw_only=True):
    role: str
    content: Raw
    phase: str | None = None


class Called(Item, kw_only=True):
    """An item of a tool, with its caller."""

    caller: Raw = NULL
    namespace: Raw = NULL


class FunctionCall(Called, kw_only=True):
    call_id: Raw
    name: Raw
    arguments: Raw
    is_async: bool | None = field(name="async", default=None)


class FunctionCallOutput(Called, kw_only=True):
    call_id: Raw
    output: Raw
    name: Raw = NULL


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


class Tool(StrictStruct):
    type: str
    name: Raw
    parameters: Raw = NULL
    strict: bool | None = None
    description: Raw = NULL
    defer_loading: bool | None = None
    allowed_callers: Raw = NULL
    output_schema: Raw = NULL
    is_async: bool | None = field(name="async", default=None)


class Choice(StrictStruct):
    """`function` with its name, or `allowed_tools`."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: Raw = NULL


class Named(StrictStruct):
    type: str
    name: str


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
