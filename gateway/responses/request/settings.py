"""The settings of a Responses request in addition to its conversation: sampling, reasoning and the format of the answer. Pure.

Each function writes members of the chat request, and the members that the response does not repeat unchanged.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from fairlane.gateway.core.bodies import RawObject
from fairlane.gateway.core.output_size import MAX_OUTPUT_TOKENS
from fairlane.gateway.openai.requests import MAX_KEY, MAX_PAIRS, MAX_VALUE
from fairlane.gateway.openai.shapes import NOT_HERE, invalid, is_null, read, string, text
from fairlane.gateway.responses.request import shapes
from fairlane.streaming.jsontext import NULL, join_object, json_string, kind_of, one_line

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")
TRUNCATIONS = ("auto", "disabled")
"""`auto` permits to shorten an input that is too long; this never happens here."""
CONTEXTS = ("auto", "all_turns")
"""All thoughts of the input are passed on."""
LOGPROBS = "message.output_text.logprobs"
INCLUDED = frozenset({LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url"})
"""Valid values of `include`; the last two are always included."""
MAX_LOGPROBS = 20
_AS_THEY_ARE = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_TEXTS = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")
"""Members that chat has, too: OpenAI reads them, other servers ignore them."""

_number, _whole, _name = Decoder(float), Decoder(int), Decoder(str)
_names, _pairs = Decoder(list[str]), Decoder(dict[str, str])
_text, _format, _thinking, _options = (
    Decoder(shapes.Text),
    Decoder(shapes.Format),
    Decoder(shapes.Thinking),
    Decoder(shapes.StreamOptions),
)


def read_settings(given: RawObject, chat: RawObject, echo: dict[str, bytes]) -> None:
    """Pass on what chat has, under the same name or another; check what is only repeated, and what has one valid value."""
    for name in given.keys() & set(_AS_THEY_ARE):
        read(given[name], _number, name)
        chat[name] = given[name]
    for name in given.keys() & set(_TEXTS):
        text(given[name], name)
        chat[name] = given[name]
    for name, word in (("max_output_tokens", "max_completion_tokens"), ("max_tool_calls", "")):
        if name in given:
            if not 1 <= read(given[name], _whole, name) <= MAX_OUTPUT_TOKENS:
                raise invalid(name, f"must be an integer from 1 to {MAX_OUTPUT_TOKENS}")
            if word:
                chat[word] = given[name]
    if "truncation" in given and read(given["truncation"], _name, "truncation") not in TRUNCATIONS:
        raise invalid("truncation", f"must be one of {', '.join(TRUNCATIONS)}")
    if "metadata" in given:
        _check_metadata(read(given["metadata"], _pairs, "metadata"))
    if (
        "stream_options" in given
        and read(given["stream_options"], _options, "stream_options").include_obfuscation
    ):
        raise invalid(
            "stream_options.include_obfuscation", "is not supported; leave it out or set it to false"
        )
    if "reasoning" in given:
        _reasoning(read(given["reasoning"], _thinking, "reasoning"), chat, echo)


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_PAIRS:
        raise invalid("metadata", f"may have at most {MAX_PAIRS} members")
    for name, value in metadata.items():
        if len(name) > MAX_KEY or len(value) > MAX_VALUE:
            raise invalid(
                f"metadata.{name[:MAX_KEY]}",
                f"names may have {MAX_KEY} characters at most, values {MAX_VALUE}",
            )


def _reasoning(thinking: shapes.Thinking, chat: RawObject, echo: dict[str, bytes]) -> None:
    """Set the reasoning effort. The summary is the whole reasoning: it is not shortened here."""
    if thinking.effort is not None:
        if thinking.effort not in EFFORTS:
            raise invalid("reasoning.effort", f"must be one of {', '.join(EFFORTS)}")
        chat["reasoning_effort"] = Raw(json_string(thinking.effort))
    for name, value in (("summary", thinking.summary), ("generate_summary", thinking.generate_summary)):
        if value not in (None, *SUMMARIES):
            raise invalid(f"reasoning.{name}", f"must be one of {', '.join(SUMMARIES)}")
    if thinking.context not in (None, *CONTEXTS):
        raise invalid("reasoning.context", NOT_HERE)
    if thinking.mode not in (None, "standard"):
        raise invalid("reasoning.mode", NOT_HERE)
    summary = thinking.summary or thinking.generate_summary
    echo["reasoning"] = msgspec.json.encode({"effort": thinking.effort, "summary": summary})


def read_output(given: RawObject, chat: RawObject, echo: dict[str, bytes]) -> None:
    """Set the format of the text."""
    if "text" not in given:
        return
    wanted = read(given["text"], _text, "text")
    echoed = [("format", b'{"type":"text"}')]
    if not is_null(wanted.format):
        form = read(wanted.format, _format, "text.format")
        if form.type == "json_schema":
            schema = _schema(form)
            chat["response_format"] = Raw(_named_schema(schema))
            echoed = [("format", join_object([("type", b'"json_schema"'), *_all_of(schema)]))]
        elif form.type == "json_object":
            echoed = [("format", b'{"type":"json_object"}')]
            chat["response_format"] = Raw(b'{"type":"json_object"}')
        elif form.type != "text":
            raise invalid("text.format.type", "must be text, json_object or json_schema")
    if wanted.verbosity is not None:
        if wanted.verbosity not in VERBOSITIES:
            raise invalid("text.verbosity", f"must be one of {', '.join(VERBOSITIES)}")
        chat["verbosity"] = Raw(json_string(wanted.verbosity))
        echoed.append(("verbosity", json_string(wanted.verbosity)))
    echo["text"] = one_line(join_object(echoed))


def _schema(form: shapes.Format) -> dict[str, bytes]:
    """Return the members of a schema that are given."""
    if kind_of(form.json_schema) != "{":
        raise invalid("text.format.schema", "must be a JSON schema, an object")
    schema = {"name": string(form.name, "text.format.name")}
    if not is_null(form.description):
        schema["description"] = string(form.description, "text.format.description")
    if form.strict is not None:
        schema["strict"] = b"true" if form.strict else b"false"
    return {**schema, "schema": bytes(form.json_schema)}


def _named_schema(schema: Mapping[str, bytes]) -> bytes:
    """Return a schema as chat's `response_format`."""
    return join_object([("type", b'"json_schema"'), ("json_schema", join_object(schema.items()))])


def _all_of(schema: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Return a schema as a response shows it: with defaults."""
    return list({"description": NULL, "strict": b"false", **schema}.items())


def read_included(given: RawObject, chat: RawObject) -> None:
    """Check `include`, and request log probabilities if it names them."""
    included = read(given["include"], _names, "include") if "include" in given else []
    for number, name in enumerate(included):
        if name not in INCLUDED:
            raise invalid(f"include[{number}]", f"{name[:100]!r} is not supported; leave it out")
    top = read(given["top_logprobs"], _whole, "top_logprobs") if "top_logprobs" in given else 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise invalid("top_logprobs", f"must be an integer from 0 to {MAX_LOGPROBS}")
    if LOGPROBS in included:
        chat["logprobs"] = Raw(b"true")
        if top:
            chat["top_logprobs"] = Raw(b"%d" % top)
    elif top:
        raise invalid("top_logprobs", f"needs {LOGPROBS!r} in include")
