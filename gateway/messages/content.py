"""Messages with their blocks, as chat has them. Pure.

What chat has no word for stands in its messages under Anthropic's name for it, and is noted (`Conversation.extended`): workers
for Anthropic send it on, others leave it out or say it otherwise (docs/http-api.md).
"""

import re
from collections.abc import Sequence

from msgspec import Raw
from msgspec.json import Decoder

from fairlane.gateway.messages import shapes
from fairlane.gateway.openai.shapes import (
    NOT_HERE,
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
from fairlane.streaming.jsontext import EMPTY_STRING, NULL, join_object, json_string, kind_of, members
from fairlane.streaming.views.choice import THOUGHTS

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
_user = Decoder(list[shapes.Text | shapes.Image | shapes.Document | shapes.SearchResult | shapes.ToolResult])
_assistant = Decoder(list[shapes.Text | shapes.Thinking | shapes.RedactedThinking | shapes.ToolUse])
_texts = Decoder(list[shapes.Text])
_result = Decoder(
    list[shapes.Text | shapes.Image | shapes.Document | shapes.SearchResult | shapes.ToolReference]
)
_image_source = Decoder(shapes.Base64Source | shapes.UrlSource)
_document_source = Decoder(shapes.Base64Source | shapes.TextSource | shapes.ContentSource)
_part = Decoder(list[shapes.Text | shapes.Image])
_messages = Decoder(list[shapes.Message])
_typed = Decoder(Typed)
_BETWEEN = rb"\n\n"


class Conversation:
    """The messages of one request, put together."""

    def __init__(self, budget: SizeLimit) -> None:
        self._budget = budget
        self.messages: list[bytes | bytearray] = []
        self.extended = False
        """Whether a message has members that chat lacks, or that many servers do not know: several texts as one content."""
        self.inline_bytes = 0
        """Bytes of images and files inside the request."""
        self.inline = 0
        """Number of images and files."""

    def add_system(self, raw: Raw) -> None:
        """Add the system prompt. Raise ApiError(400), as all methods."""
        add_system(self.messages, self._texts(raw, "system"))

    def add(self, raw: Raw) -> None:
        """Add the list of messages."""
        if kind_of(raw) != "[":
            raise invalid("messages", "must be a list of messages")
        messages = read(raw, _messages, "messages")
        if not messages:
            raise invalid("messages", "at least one message is needed")
        for number, message in enumerate(messages):
            place = f"messages[{number}].content"
            if message.role == "user":
                self._add_user(message.content, place)
            elif message.role == "assistant":
                self._add_assistant(message.content, place)
            elif message.role == "system":
                add_system(self.messages, self._texts(message.content, place))
            else:
                raise invalid(f"messages[{number}].role", "must be user, assistant or system")

    def _add(self, role: str, content: bytes, *others: tuple[str, bytes]) -> None:
        self.messages.append(join_object([("role", json_string(role)), ("content", content), *others]))

    def _texts(self, raw: Raw, place: str) -> bytes:
        if kind_of(raw) == '"':
            return bytes(raw)
        blocks = self._blocks(raw, _texts, place)
        return self._content(blocks, place)

    def _blocks(self, raw: Raw, decoder: Decoder[list[Shape]], place: str) -> list[Shape]:
        if is_empty(raw):
            return []
        if kind_of(raw) != "[":
            raise invalid(place, "must be a string or a list of blocks")
        return read(raw, decoder, place)

    def _add_user(self, raw: Raw, place: str) -> None:
        """Add a user's message, after the results of tools: in chat they follow their calls, each as a message."""
        if kind_of(raw) == '"':
            self._add("user", bytes(raw))
            return
        blocks = self._blocks(raw, _user, place)
        others = []
        for number, block in enumerate(blocks):
            if isinstance(block, shapes.ToolResult):
                self._add_result(block, f"{place}[{number}]")
            else:
                others.append((block, f"{place}[{number}]"))
        if others or not blocks:
            self._add("user", self._content_of(others))

    def _add_result(self, block: shapes.ToolResult, place: str) -> None:
        call_id = b'"%b"' % text(block.tool_use_id, f"{place}.tool_use_id")
        if kind_of(block.content) == '"':
            content = bytes(block.content)
        else:
            inside = self._blocks(block.content, _result, f"{place}.content")
            content = self._content(inside, f"{place}.content")
            if any(not isinstance(one, shapes.Text) for one in inside):
                self.extended = True
        more = [("tool_call_id", call_id)]
        if block.is_error:
            more.append(("is_error", b"true"))
            self.extended = True
        self._add("tool", content, *more, *self._cached(block))

    def _add_assistant(self, raw: Raw, place: str) -> None:
        """Add an assistant's message. Signed thoughts are passed back unchanged, others as text."""
        if kind_of(raw) == '"':
            self._add("assistant", bytes(raw))
            return
        texts, thoughts, unsigned, calls = [], [], [], []
        for number, block in enumerate(self._blocks(raw, _assistant, place)):
            at = f"{place}[{number}]"
            if isinstance(block, shapes.Text):
                texts.append((block, at))
            elif isinstance(block, shapes.ToolUse):
                calls.append(self._call(block, at))
            elif isinstance(block, shapes.RedactedThinking):
                thoughts.append(json_object(type="redacted_thinking", data=string(block.data, f"{at}.data")))
            elif isinstance(block, shapes.Thinking):
                thought = string(block.thinking, f"{at}.thinking")
                signature = NULL if is_null(block.signature) else string(block.signature, f"{at}.signature")
                if signature in (NULL, EMPTY_STRING):
                    unsigned.append(thought[1:-1])
                else:
                    thoughts.append(json_object(type="thinking", thinking=thought, signature=signature))
        more = []
        if unsigned:
            more.append(("reasoning_content", b'"%b"' % b"".join(unsigned)))
        if thoughts:
            more.append((THOUGHTS, b"[%b]" % b",".join(thoughts)))
        if calls:
            more.append(("tool_calls", b"[%b]" % b",".join(calls)))
        self.extended = self.extended or bool(thoughts or unsigned)
        self._add("assistant", self._content_of(texts) if texts or not calls else NULL, *more)

    def _call(self, block: shapes.ToolUse, place: str) -> bytes:
        if kind_of(block.input) != "{":
            raise invalid(f"{place}.input", "must be an object")
        if not is_null(block.caller):
            caller = read(block.caller, _typed, f"{place}.caller")
            if caller.type != "direct":
                raise invalid(f"{place}.caller", "must be direct: only the model can call tools")
        self._budget.check_escaped(block.input)
        arguments = json_string(bytes(block.input).decode())
        function = join_object([("name", string(block.name, f"{place}.name")), ("arguments", arguments)])
        return join_object(
            [
                ("id", string(block.id, f"{place}.id")),
                ("type", b'"function"'),
                ("function", function),
                *self._cached(block),
            ]
        )

    def _content(self, blocks: Sequence[object], place: str) -> bytes:
        return self._content_of([(block, f"{place}[{number}]") for number, block in enumerate(blocks)])

    def _content_of(self, blocks: Sequence[tuple[object, str]]) -> bytes:
        """Return the content of a message: one text as it is, all else as parts."""
        if not blocks:
            return EMPTY_STRING
        first, place = blocks[0]
        if len(blocks) == 1 and isinstance(first, shapes.Text) and is_null(first.cache_control):
            return _text_of(first, place)
        parts = [part for block, place in blocks for part in self._parts(block, place)]
        self.extended = self.extended or all(isinstance(block, shapes.Text) for block, _ in blocks)
        return b"[%b]" % b",".join(parts)

    def _parts(self, block: object, place: str) -> list[bytes]:
        if isinstance(block, shapes.Text):
            return [self._text(_text_of(block, place), block)]
        if isinstance(block, shapes.Image):
            if not is_empty(block.transformations):
                raise invalid(f"{place}.transformations", NOT_HERE)
            return [self._image(block, place)]
        if isinstance(block, shapes.SearchResult):
            return [self._search_result(block, place)]
        if isinstance(block, shapes.ToolReference):
            return [self._text(string(block.tool_name, f"{place}.tool_name"), block)]
        assert isinstance(block, shapes.Document)
        return self._document(block, place)

    def _text(self, text_json: bytes, block: shapes.Block) -> bytes:
        return join_object([("type", b'"text"'), ("text", text_json), *self._cached(block)])

    def _image(self, block: shapes.Image, place: str) -> bytes:
        source = read(block.source, _image_source, f"{place}.source")
        self.inline += 1
        if isinstance(source, shapes.UrlSource):
            url = string(source.url, f"{place}.source.url")
        else:
            url = self._data_url(source, f"{place}.source")
        return join_object(
            [("type", b'"image_url"'), ("image_url", json_object(url=url)), *self._cached(block)]
        )

    def _data_url(self, source: shapes.Base64Source, place: str) -> bytes:
        if not _MEDIA_TYPE.fullmatch(source.media_type):
            raise invalid(f"{place}.media_type", "must be a media type, such as image/png")
        data = text(source.data, f"{place}.data")
        self.inline_bytes += len(data)
        return b'"data:%b;base64,%b"' % (source.media_type.encode(), data)

    def _document(self, block: shapes.Document, place: str) -> list[bytes]:
        _check_citations(block.citations, f"{place}.citations")
        source = read(block.source, _document_source, f"{place}.source")
        title, context = (
            None if is_null(raw) else text(raw, f"{place}.{name}")
            for name, raw in (("title", block.title), ("context", block.context))
        )
        if isinstance(source, shapes.Base64Source):
            self.inline += 1
            file = [("file_data", self._data_url(source, f"{place}.source"))]
            if title is not None:
                file.append(("filename", b'"%b"' % title))
            part = join_object([("type", b'"file"'), ("file", join_object(file)), *self._cached(block)])
            return [part] if context is None else [_plain(b'"%b"' % context), part]
        before = [one for one in (title, context) if one]
        if isinstance(source, shapes.TextSource):
            data = text(source.data, f"{place}.source.data")
            return [self._text(b'"%b"' % _BETWEEN.join([*before, data]), block)]
        parts = [_plain(b'"%b"' % _BETWEEN.join(before))] if before else []
        if kind_of(source.content) == '"':
            return [*parts, self._text(bytes(source.content), block)]
        at = f"{place}.source.content"
        inside = self._blocks(source.content, _part, at)
        return parts + [
            part for number, one in enumerate(inside) for part in self._parts(one, f"{at}[{number}]")
        ]

    def _search_result(self, block: shapes.SearchResult, place: str) -> bytes:
        """Return a text, with its title and where it is from."""
        _check_citations(block.citations, f"{place}.citations")
        lines = [text(block.title, f"{place}.title"), text(block.source, f"{place}.source")]
        for number, one in enumerate(self._blocks(block.content, _texts, f"{place}.content")):
            lines.append(text(one.text, f"{place}.content[{number}].text"))
        return self._text(b'"%b"' % _BETWEEN.join(lines), block)

    def _cached(self, block: shapes.Block) -> list[tuple[str, bytes]]:
        """Return Anthropic's cache marker, which other servers ignore."""
        if is_null(block.cache_control):
            return []
        self.extended = True
        return [("cache_control", bytes(block.cache_control))]


def _text_of(block: shapes.Text, place: str) -> bytes:
    """Return a block's text, as JSON."""
    if not is_empty(block.citations):
        raise invalid(f"{place}.citations", NOT_HERE)
    return string(block.text, f"{place}.text")


def _check_citations(raw: Raw, place: str) -> None:
    if is_null(raw):
        return
    found = members(raw) or {}
    if found.keys() - {"enabled"} or bytes(found.get("enabled", b"")) == b"true":
        raise invalid(place, "citations are not supported; leave it out")


def _plain(text_json: bytes) -> bytes:
    return json_object(type="text", text=text_json)
