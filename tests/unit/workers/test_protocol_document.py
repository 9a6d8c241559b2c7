"""PROTOCOL.md and protocol.py say the same: message types, fields, choices, failure codes, close codes."""

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from fairlane.workers import protocol, tasktypes

DOCUMENT = (Path(protocol.__file__).parent / "PROTOCOL.md").read_text()
KEY = {"taskId", "attempt"}
MESSAGES = {
    cls.__struct_config__.tag: cls
    for cls in (*get_args(protocol.FromWorker), *get_args(protocol.FromGateway))
}
NESTED = {
    "sdk": protocol.Sdk,
    "stage": protocol.Stage,
    "errorInfo": protocol.ErrorInfo,
    "timings": protocol.Timings,
    "limits": protocol.Limits,
}


def section(title: str) -> str:
    """The text below a heading, up to the next heading of the same rank or a higher one."""
    rank, start = next(
        (len(m.group(1)), m.end()) for m in re.finditer(r"^(#+) (.*)$", DOCUMENT, re.M) if m.group(2) == title
    )
    end = re.search(rf"^#{{1,{rank}}} ", DOCUMENT[start:], re.M)
    return DOCUMENT[start : start + end.start()] if end else DOCUMENT[start:]


def rows(title: str) -> list[list[str]]:
    """The cells of the tables in a section, without their heads."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for i, row in enumerate(cells) if not set(row[0]) <= set("- ") and not is_head(cells, i)]


def is_head(cells: list[list[str]], i: int) -> bool:
    return i + 1 < len(cells) and set(cells[i + 1][0]) <= set("- ") and cells[i + 1][0] != ""


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def names_in(cell: str) -> set[str]:
    """Field names (and choices) that a cell of the field column mentions."""
    names = {m.group(1) for span in code_spans(cell) if (m := re.match(r"(\w+)\??(?::|$)", span))}
    if re.match(r"K\b", cell):
        names |= KEY
    return names


def fields_of(cls: type) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(cls)}


def choices_of(cls: type) -> set[str]:
    found: set[str] = set()
    for hint in get_type_hints(cls).values():
        if get_origin(hint) is Literal:
            found |= set(get_args(hint))
    return found


def documented() -> dict[str, str]:
    cells = {}
    for title in ("Worker → gateway", "Gateway → worker"):
        for row in rows(title):
            cells[code_spans(row[0])[0]] = row[1]
    return cells


def version_1_keys() -> dict[str, set[str]]:
    keys: dict[str, set[str]] = {}
    for row in rows("Version 1"):
        sample = code_spans(row[1])[0]
        type_name = re.search(r'"type":"(\w+)"', sample)
        assert type_name is not None
        keys[type_name.group(1)] = set(re.findall(r'"(\w+)":', sample)) - {"type"}
    return keys


def test_every_message_type_is_in_the_document_and_in_the_code() -> None:
    assert documented().keys() == MESSAGES.keys()


@pytest.mark.parametrize("type_name", sorted(MESSAGES))
def test_the_fields_of_a_message_are_the_documented_ones(type_name: str) -> None:
    cls = MESSAGES[type_name]
    named = names_in(documented()[type_name])
    if type_name == "task":
        named |= version_1_keys()["task"]
    if type_name == "heartbeat":
        named -= {"K"}
    assert named - version_1_keys().get(type_name, set()) - choices_of(cls) <= fields_of(cls)
    assert fields_of(cls) <= named | version_1_keys().get(type_name, set())
    assert choices_of(cls) <= named


@pytest.mark.parametrize("name", sorted(NESTED))
def test_the_members_of_a_nested_object_are_the_documented_ones(name: str) -> None:
    whole = section("Worker → gateway") + section("Gateway → worker")
    found = re.search(rf"`{name}\??: \{{([^}}]*)\}}`", whole)
    assert found is not None
    members = {part.strip().rstrip("?") for part in found.group(1).split(",")}
    assert members == fields_of(NESTED[name])


def test_the_members_of_a_delta_are_the_documented_ones() -> None:
    found = re.search(r"A delta is `\{([^}]*)\}`", DOCUMENT)
    assert found is not None
    assert set(re.findall(r'"(\w+)"', found.group(1))) == fields_of(protocol.Delta)


def test_the_types_of_tasks_are_the_documented_ones() -> None:
    assert [code_spans(row[0])[0] for row in rows("Texts")] == list(tasktypes.TEXT)
    media = [name for row in rows("Media") for name in code_spans(row[0])]
    assert set(media) == set(tasktypes.MEDIA)


def test_version_1_uses_only_fields_that_the_types_know() -> None:
    for type_name, keys in version_1_keys().items():
        assert keys <= fields_of(MESSAGES[type_name])


def test_failure_codes_and_what_they_usually_mean_are_the_documented_ones() -> None:
    table = {code_spans(row[0])[0]: row[2] == "retryable" for row in rows("Failure codes") if len(row) == 3}
    assert table == protocol.FAILURE_CODES


def test_close_codes_are_the_documented_ones() -> None:
    sentence = re.search(r"^Close codes: (.*?)\. After", DOCUMENT, re.M | re.S)
    assert sentence is not None
    constants = {value for name, value in vars(protocol).items() if name.startswith("CLOSE_")}
    assert {int(code) for code in re.findall(r"\b\d{4}\b", sentence.group(1))} == constants
    after = re.search(r"After ([\d, and]+) a worker should not come back", DOCUMENT)
    assert after is not None
    assert {int(code) for code in re.findall(r"\d+", after.group(1))} == protocol.FATAL_CLOSE_CODES


def test_the_subprotocol_is_the_documented_one() -> None:
    assert f"Subprotocol `{protocol.SUBPROTOCOL}`" in DOCUMENT


FULL_FRAMES: list[dict[str, Any]] = [
    {
        "type": "taskChunk",
        "taskId": "t",
        "attempt": 1,
        "seq": 1,
        "deltas": [{"content": "a", "toolCalls": [{"index": 0}], "extra": {"logprobs": {}}}],
    },
    {
        "type": "taskResult",
        "taskId": "t",
        "attempt": 1,
        "lastSeq": 1,
        "result": {"a": 1},
        "usage": {"inputTokens": 1, "outputTokens": 2, "other": 3},
    },
]


@pytest.mark.parametrize("frame", FULL_FRAMES, ids=lambda frame: str(frame["type"]))
def test_json_that_is_passed_through_survives_decoding_and_encoding(frame: dict[str, Any]) -> None:
    message = protocol.from_worker.decode(msgspec.json.encode(frame))
    assert msgspec.json.decode(protocol.encoder.encode(message)) == frame
