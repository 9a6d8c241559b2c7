"""The child process that compiles schemas and looks whether texts match them: what callers and models choose may take for ever.

A request is a line of JSON, `["schema", ["text", …]]`; so is the answer: `["", ""]` when all is well, else a kind (`schema`
or `text`) and a sentence. Processor time per request (the argument: in seconds) and memory are bounded: the system ends the
process when it takes more. It ends when its input does.
"""

import functools
import json
import resource
import signal
import sys
from typing import Any

import jsonschema_rs
import msgspec

from fairlane.streaming.structured.requirements import MAX_REASON_CHARS, place_of

MEMORY_BYTES = 1 << 30
MAX_COMPILED = 64
_ALONE = "a schema may refer to parts of itself alone"


def main() -> None:
    """Answer requests until the input ends."""
    _limit_memory()
    # the gateway may have inherited that it is ignored
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    cpu_s = float(sys.argv[1])
    read = msgspec.json.Decoder(tuple[str, list[str]]).decode
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process
        schema, texts = read(line)
        answer = msgspec.json.encode(look(schema.encode(), [text.encode() for text in texts]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


def look(schema: bytes, texts: list[bytes]) -> tuple[str, str]:
    """What is wrong with the schema, or with the first text that does not match it; ("", "") for nothing. Never fails."""
    try:
        validator = _validator(schema)
    except BaseException as error:
        return "schema", _wrong_schema(error)
    for number, text in enumerate(texts):
        if wrong := _wrong(validator, text):
            return "text", f"choice {number}, {wrong}" if len(texts) > 1 else wrong
    return "", ""


@functools.lru_cache(MAX_COMPILED)
def _validator(schema: bytes) -> Any:
    return jsonschema_rs.validator_for(
        json.loads(schema),
        retriever=_fetch_nothing,
        pattern_options=jsonschema_rs.RegexOptions(),  # in linear time
        validate_formats=False,
        mask="the value",
    )


def _wrong(validator: Any, text: bytes) -> str:
    """Why a text (a JSON string) does not match; '' when it does."""
    try:
        value = json.loads(msgspec.json.decode(text, type=str), parse_constant=_no_constant)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return f"it is not JSON: {_short(str(error))}"
    except MemoryError:
        return "it takes too much memory"
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return f"{place_of(error.instance_path)}: {_short(error.message)}"
    except BaseException as error:
        return f"it cannot be compared: {_short(str(error))}"
    return ""


def _wrong_schema(error: BaseException) -> str:
    if not isinstance(error, jsonschema_rs.ValidationError):
        return _short(str(error)) or type(error).__name__
    why = error.message
    if _ALONE in why:
        why = f"{why.partition(' is not present')[0].removeprefix('Resource ')} is elsewhere: {_ALONE}"
    elif why.endswith('is not a "regex"'):
        why = "the pattern cannot be used: it may have no look-around and no back references"
    return f"{place_of(error.instance_path)}: {_short(why)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"


def _fetch_nothing(_uri: str) -> Any:
    raise ValueError(_ALONE)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _limit_memory() -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (OSError, ValueError):  # a system that does not know this limit: the time limit is left
        return


if __name__ == "__main__":
    main()
