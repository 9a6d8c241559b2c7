"""Input items as the messages of a chat. Pure.

Chat has one message for each turn of the assistant: thoughts, then what was said, then calls. So items that follow each other in
this order become one message, and any other one begins the next. What chat has no word for is said as for Messages requests, and
noted (`Conversation.extended`): workers for Anthropic get signed thoughts back, others say it otherwise (docs/http-api.md).
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum

from msgspec import Raw, json
from msgspec.json import Decoder

from fairlane.gateway.openai.shapes import (
    NOT_HERE,
    NULL,
    Shape,
    SizeLimit,
    Typed,
    add_system,
    invalid,
    is_empty,
    is_null,
    json_object,
    read,
    string,
    text,
)
from fairlane.gateway.responses.request import shapes
from fairlane.gateway.responses.request.tools import Tools
from fairlane.streaming.jsontext import EMPTY_STRING, NO_ARGUMENTS, join_object, json_string, kind_of, members
from fairlane.streaming.views.choice import THOUGHTS
from fairlane.streaming.views.responses.tools import INPUT, SEARCH, function_name
from fairlane.streaming.views.thoughts import unsealed

_kind = Decoder(shapes.Kind)
_items = Decoder(list[Raw])
_message, _call, _custom_call, _search_call = (
    Decoder(shapes.Message),
    Decoder(shapes.FunctionCall),
    Decoder(shapes.CustomCall),
    Decoder(shapes.SearchCall),
)
_output, _found, _additional = (
    Decoder(shapes.CallOutput),
    Decoder(shapes.SearchOutput),
    Decoder(shapes.AdditionalTools),
)
_reasoning, _reference = Decoder(shapes.Reasoning), Decoder(shapes.Reference)
_user = Decoder(list[shapes.InputText | shapes.InputImage | shapes.InputFile | shapes.InputAudio])
_assistant = Decoder(list[shapes.OutputText | shapes.Refusal])
_texts = Decoder(list[shapes.InputText])
_result = Decoder(list[shapes.InputText | shapes.InputImage | shapes.InputFile])
_thoughts, _summary = Decoder(list[shapes.ReasoningText]), Decoder(list[shapes.SummaryText])
_typed = Decoder(Typed)
_TEXT = (shapes.InputText, shapes.OutputText)
DETAILS = ("auto", "low", "high")
_BETWEEN = rb"\n\n"


class _Part(IntEnum):
    """The latest part of an assistant's turn."""

    NOTHING = 0
    THOUGHTS = 1
    TEXT = 2
    CALLS = 3


class _Turn:
    """An assistant's message, as it grows."""

    def __init__(self) -> None:
        self.part = _Part.NOTHING
        self.thoughts: list[bytes] = []
        """Insides of texts."""
        self.signed: list[bytes] = []
        self.content: bytes | None = None
        self.calls: list[bytes] = []
        self.call_ids: list[bytes] = []


class Conversation:
    """The messages of one request, put together."""

    def __init__(self, budget: SizeLimit, known: Mapping[str, bytes], tools: Tools) -> None:
        self._budget = budget
        self._known = known
        self._tools = tools
        self._turn = _Turn()
        self._kept_here = False
        self.messages: list[bytes | bytearray] = []
        """A message with calls grows by their results, which must follow it."""
        self._calls: dict[bytes, bytearray | None] = {}
        """The message of each call, by its id; None: it has its result."""
        self.extended = False
        """Whether a message has members that chat lacks, or that many servers do not know: several texts as one content."""

    def add_instructions(self, raw: Raw) -> None:
        """Add the instructions. Raise ApiError(400), as all methods."""
        add_system(self.messages, string(raw, "instructions"))

    def add_input(self, raw: Raw) -> None:
        """Add the input: a text, or items."""
        if kind_of(raw) == '"':
            self._add("user", string(raw, "input"))
            return
        if kind_of(raw) != "[":
            raise invalid("input", "must be a string or a list of items")
        listed = read(raw, _items, "input")
        self._add_items(listed, "input")

    def add_history(self, listed: Sequence[bytes], place: str) -> None:
        """Add stored items. Thoughts that another server sealed are passed on as their summary."""
        self._kept_here = True
        self._add_items(listed, place)
        self._kept_here = False

    def _add_items(self, listed: Sequence[bytes | Raw], place: str) -> None:
        for number, raw in enumerate(listed):
            self._item(raw, f"{place}[{number}]")

    def _item(self, raw: bytes | Raw, place: str) -> None:
        self._budget.grow(len(memoryview(raw)))  # few bytes may refer to many
        kind = read(raw, _kind, place)
        item_type = kind.type or ("message" if kind.role is not None else "item_reference")
        if item_type == "message":
            self._add_message(read(raw, _message, place), place)
        elif item_type == "function_call":
            call = read(raw, _call, place)
            name = function_name(call.name, call.namespace or "")
            self._add_call(call, name, string(call.arguments, f"{place}.arguments"), place)
        elif item_type == "custom_tool_call":
            custom = read(raw, _custom_call, place)
            name = function_name(custom.name, custom.namespace or "")
            arguments = json_object(**{INPUT: string(custom.input, f"{place}.input")})
            self._add_call(custom, name, self._escaped(arguments), place)
        elif item_type == "tool_search_call":
            search = read(raw, _search_call, place)
            self._add_call(search, SEARCH, self._escaped(bytes(search.arguments)), place)
        elif item_type in ("function_call_output", "custom_tool_call_output"):
            output = read(raw, _output, place)
            content = self._content(output.output, _result, f"{place}.output", of_tool=True)
            self._add_output(output, content, place)
        elif item_type == "tool_search_output":
            found = read(raw, _found, place)
            names = self._tools.add(found.tools, f"{place}.tools")
            self._add_output(found, self._escaped(json.encode(names)), place)
        elif item_type == "additional_tools":
            self._tools.add(read(raw, _additional, place).tools, f"{place}.tools")
        elif item_type == "reasoning":
            self._add_reasoning(read(raw, _reasoning, place), place)
        elif item_type == "item_reference":
            self._item(self._referred(read(raw, _reference, place), place), place)
        else:
            raise invalid(f"{place}.type", f"{item_type[:100]!r} {NOT_HERE}")

    def _referred(self, reference: shapes.Reference, place: str) -> bytes:
        found = self._known.get(reference.id or "")
        if found is None:
            raise invalid(
                f"{place}.id", f"no item {(reference.id or '')[:100]!r} is stored; send the item itself"
            )
        return found

    def _add(self, role: str, content: bytes, *others: tuple[str, bytes]) -> None:
        self.flush()
        self.messages.append(join_object([("role", json_string(role)), ("content", content), *others]))

    def _add_message(self, message: shapes.Message, place: str) -> None:
        at = f"{place}.content"
        if message.role == "user":
            self._add("user", self._content(message.content, _user, at))
        elif message.role in ("system", "developer"):
            content = self._content(message.content, _texts, at)
            self.flush()
            add_system(self.messages, content)
        elif message.role == "assistant":
            content = self._content(message.content, _assistant, at)
            turn = self._turn_at(_Part.TEXT)
            turn.content = content
        else:
            raise invalid(f"{place}.role", f"must be one of {', '.join(shapes.ROLES)}")

    def _turn_at(self, part: _Part) -> _Turn:
        """Return the assistant's turn that this part continues, or a new one: each part except calls comes once. A text
        behind calls is of their message, as their results must follow it."""
        late = part is _Part.TEXT and self._turn.content is None
        if (self._turn.part > part and not late) or self._turn.part == part == _Part.TEXT:
            self.flush()
        self._turn.part = max(self._turn.part, part)
        return self._turn

    def flush(self) -> None:
        """Complete the assistant's turn: a new message follows, or the input ends."""
        turn = self._turn
        if turn.part == _Part.NOTHING:
            return
        self._turn = _Turn()
        more = []
        if turn.thoughts:
            more.append(("reasoning_content", b'"%b"' % _BETWEEN.join(turn.thoughts)))
        if turn.signed:
            more.append((THOUGHTS, b"[%b]" % b",".join(turn.signed)))
        if turn.calls:
            more.append(("tool_calls", b"[%b]" % b",".join(turn.calls)))
        self.extended = self.extended or bool(turn.thoughts or turn.signed)
        content = turn.content or (NULL if turn.calls else EMPTY_STRING)
        message = bytearray(join_object([("role", b'"assistant"'), ("content", bytes(content)), *more]))
        self.messages.append(message)
        self._calls |= dict.fromkeys(turn.call_ids, message)

    def _escaped(self, raw: bytes) -> bytes:
        """Return JSON as a JSON text. Raise ApiError(413)."""
        self._budget.check_escaped(Raw(raw))
        return json_string(raw.decode())

    def _add_call(self, call: shapes.Called, name: str, arguments: bytes, place: str) -> None:
        _check_caller(call, place)
        function = json_object(name=name, arguments=NO_ARGUMENTS if arguments == EMPTY_STRING else arguments)
        call_id = string(call.call_id, f"{place}.call_id")
        turn = self._turn_at(_Part.CALLS)
        turn.calls.append(json_object(id=call_id, type="function", function=function))
        turn.call_ids.append(call_id)

    def _add_output(self, output: shapes.Called, content: bytes, place: str) -> None:
        """Add the result of a call behind it, wherever it stands, and once: a client that sends `previous_response_id` and its
        messages again repeats results, and sends others after a later message."""
        _check_caller(output, place)
        call_id = string(output.call_id, f"{place}.call_id")
        if call_id not in self._calls or call_id in self._turn.call_ids:
            self.flush()
        message = join_object([("role", b'"tool"'), ("content", content), ("tool_call_id", call_id)])
        if call_id not in self._calls:
            self.messages.append(message)
        elif (called := self._calls[call_id]) is not None:
            called += b",%b" % message
            self._calls[call_id] = None

    def _add_reasoning(self, item: shapes.Reasoning, place: str) -> None:
        """Sealed thoughts are passed back unchanged, others as text."""
        content_place, summed = f"{place}.content", f"{place}.summary"
        parts: list[tuple[str, Raw]] = []
        if not is_null(item.content):
            thoughts = read(item.content, _thoughts, content_place)
            parts += [(f"{content_place}[{number}].text", part.text) for number, part in enumerate(thoughts)]
        if not is_null(item.summary):
            summary = read(item.summary, _summary, summed)
            parts += [(f"{summed}[{number}].text", part.text) for number, part in enumerate(summary)]
        texts = [text(raw, at) for at, raw in parts]
        turn = self._turn_at(_Part.THOUGHTS)
        signed = unsealed(item.encrypted_content) if item.encrypted_content else None
        if item.encrypted_content and not (signed is None and self._kept_here):
            if signed is None:
                raise invalid(
                    f"{place}.encrypted_content", "was not created by this gateway; leave the item out"
                )
            turn.signed += signed
        else:
            turn.thoughts += [one for one in texts if one]

    def _content(
        self, raw: Raw, decoder: Decoder[list[Shape]], place: str, *, of_tool: bool = False
    ) -> bytes:
        """Return the content of a message: one text as it is, all else as parts."""
        if kind_of(raw) == '"':
            return bytes(raw)
        if is_empty(raw):
            return EMPTY_STRING
        if kind_of(raw) != "[":
            raise invalid(place, "must be a string or a list of parts")
        parts = read(raw, decoder, place)
        contents = [_part(part, f"{place}[{number}]") for number, part in enumerate(parts)]
        texts = sum(isinstance(part, _TEXT) for part in parts)
        if texts == len(contents) == 1:
            return bytes((members(contents[0]) or {})["text"])
        self.extended = self.extended or of_tool or texts == len(contents)
        return b"[%b]" % b",".join(contents)


def _part(part: object, place: str) -> bytes:
    """Return a part as chat has it."""
    assert isinstance(part, shapes.Part)
    if isinstance(part, shapes.InputText):
        return json_object(type="text", text=string(part.text, f"{place}.text"))
    if isinstance(part, shapes.OutputText):
        if not is_empty(part.annotations):
            raise invalid(f"{place}.annotations", NOT_HERE)
        return json_object(type="text", text=string(part.text, f"{place}.text"))
    if isinstance(part, shapes.Refusal):
        return json_object(type="refusal", refusal=string(part.refusal, f"{place}.refusal"))
    if isinstance(part, shapes.InputImage):
        return _image(part, place)
    if isinstance(part, shapes.InputAudio):
        at = f"{place}.input_audio"
        data, form = (
            string(part.input_audio.data, f"{at}.data"),
            string(part.input_audio.format, f"{at}.format"),
        )
        return json_object(type="input_audio", input_audio=json_object(data=data, format=form))
    assert isinstance(part, shapes.InputFile)
    return _file(part, place)


def _image(part: shapes.InputImage, place: str) -> bytes:
    _check_id(part.file_id, place, "image_url")
    if is_null(part.image_url):
        raise invalid(f"{place}.image_url", "is missing")
    url = [("url", string(part.image_url, f"{place}.image_url"))]
    if part.detail not in (None, *DETAILS):
        raise invalid(f"{place}.detail", f"must be one of {', '.join(DETAILS)}")
    if part.detail not in (None, "auto"):
        url.append(("detail", json_string(part.detail)))
    return json_object(type="image_url", image_url=join_object(url))


def _file(part: shapes.InputFile, place: str) -> bytes:
    _check_id(part.file_id, place, "file_data")
    if not is_null(part.file_url):
        raise invalid(f"{place}.file_url", "is not supported; send the data in file_data")
    if part.detail not in (None, "auto"):
        raise invalid(f"{place}.detail", NOT_HERE)
    if is_null(part.file_data):
        raise invalid(f"{place}.file_data", "is missing")
    file = [("file_data", string(part.file_data, f"{place}.file_data"))]
    if not is_null(part.filename):
        file.append(("filename", string(part.filename, f"{place}.filename")))
    return json_object(type="file", file=join_object(file))


def _check_id(raw: Raw, place: str, instead: str) -> None:
    if not is_null(raw):
        raise invalid(
            f"{place}.file_id",
            f"is not supported: models cannot read stored files. Send the data in {instead}",
        )


def _check_caller(item: shapes.Called, place: str) -> None:
    if item.is_async:
        raise invalid(f"{place}.async", NOT_HERE)
    if not is_null(item.caller) and read(item.caller, _typed, f"{place}.caller").type != "direct":
        raise invalid(f"{place}.caller", "must be direct: only the model can call tools")
