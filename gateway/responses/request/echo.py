"""The members of its request that a response repeats. Pure."""

from collections.abc import Mapping

from fairlane.gateway.core.bodies import RawObject
from fairlane.gateway.openai.shapes import invalid
from fairlane.streaming.jsontext import NULL, join_object, one_line

MAX_ECHO = 512 * 1024
"""Bytes of it: they are held for as long as a response streams, and stand in four of its events."""
DEFAULTS: dict[str, bytes] = {
    "background": b"false",
    "frequency_penalty": b"0",
    "instructions": NULL,
    "max_output_tokens": NULL,
    "max_tool_calls": NULL,
    "metadata": b"{}",
    "parallel_tool_calls": b"true",
    "presence_penalty": b"0",
    "previous_response_id": NULL,
    "prompt_cache_key": NULL,
    "prompt_cache_retention": NULL,
    "reasoning": b'{"effort":null,"summary":null}',
    "safety_identifier": NULL,
    "service_tier": b'"default"',
    "store": b"false",
    "temperature": b"1",
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "tools": b"[]",
    "top_logprobs": b"0",
    "top_p": b"1",
    "truncation": b'"disabled"',
    "user": NULL,
}
"""The members that a response repeats, with OpenAI's defaults."""
_MADE = frozenset({"reasoning", "store", "text", "tool_choice", "tools"})
"""Members that are not repeated unchanged."""


def new_echo(given: RawObject, *, store: bool) -> dict[str, bytes]:
    """Return the members that a response repeats unchanged, and defaults for the others."""
    repeated = {name: one_line(bytes(given[name])) for name in given.keys() & (DEFAULTS.keys() - _MADE)}
    return {**DEFAULTS, **repeated, "store": b"true" if store else b"false"}


def whole_echo(echo: Mapping[str, bytes]) -> bytes:
    """Return the echo as a JSON object, one line. Raise ApiError(400) that names the largest member if it is too long."""
    if sum(map(len, echo.values())) > MAX_ECHO:
        most = max(echo, key=lambda name: len(echo[name]))
        raise invalid(
            most, f"instructions, tools and text may take {MAX_ECHO} bytes together: a response repeats them"
        )
    return join_object(echo.items())
