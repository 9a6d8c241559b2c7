"""What an answer must be, where it is not, and which texts are looked at: no processes."""

import json
from typing import Any

import pytest

from fairlane.streaming.jsontext import members
from fairlane.streaming.structured.child import look
from fairlane.streaming.structured.requirements import (
    ANY_OBJECT,
    MAX_PLACE_CHARS,
    MAX_REASON_CHARS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    check_form,
    place_of,
    schema_of,
    texts_to_check,
    wanted_of,
)
from fairlane.streaming.views.choice import choices_of_result

SKILLS = {
    "type": "object",
    "properties": {
        "skills": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["skills"],
}


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def asked(schema: Any = SKILLS, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "cv", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ([], "$"),
        (["skills", 3, "name"], "$.skills[3].name"),
        ([0, 12], "$[0][12]"),
        (["my key", 'a"b'], r'$["my key"]["a\"b"]'),
        (["a" * 500], "$." + "a" * (MAX_PLACE_CHARS - 3) + "…"),
    ],
)
def test_a_place_is_told_as_json_paths_are_written(path: list[str | int], place: str) -> None:
    assert place_of(path) == place
    assert len(place_of(path)) <= MAX_PLACE_CHARS


@pytest.mark.parametrize(
    ("response_format", "by_default", "by_all"),
    [
        (asked(strict=True), "payload", "payload"),
        (asked(), "", "payload"),
        (asked(strict=None), "", "payload"),
        (asked(strict=False), "", ""),
        ({"type": "json_object"}, "", "object"),
        ({"type": "text"}, "", ""),
        ({"type": "json_schema"}, "", ""),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": None, "strict": True}}, "", ""),
        ("json", "", ""),
        (None, "", ""),
        ({"type": 3}, "", ""),
    ],
)
def test_what_is_looked_at_is_what_was_asked_for_strictly(
    response_format: Any, by_default: str, by_all: str
) -> None:
    fields = members(raw({"response_format": response_format})) or {}
    assert wanted_of(fields, unstrict=False) == by_default
    assert wanted_of(fields, unstrict=True) == by_all


def test_the_schema_is_the_payloads_or_the_tasks_own() -> None:
    payload = raw({"messages": [], "response_format": asked()})
    assert json.loads(schema_of("payload", payload)) == SKILLS
    assert schema_of("payload", b"[]") == schema_of("object", payload) == ANY_OBJECT
    assert schema_of('{"type":"array"}', payload) == b'{"type":"array"}'


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (b"[]", "must be an object"),
        (b'"x"', "must be an object"),
        (raw({"title": "x" * MAX_SCHEMA_BYTES}), f"may have {MAX_SCHEMA_BYTES}"),
        (b'{"not":' * MAX_SCHEMA_DEPTH + b"{}" + b"}" * MAX_SCHEMA_DEPTH, "nested deeper"),
    ],
)
def test_what_is_too_large_to_be_a_schema_is_refused_with_a_sentence(schema: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_form(schema)


def test_brackets_in_texts_are_no_depth() -> None:
    check_form(raw({"title": "[" * 1000 + '\\"{' * 100}))


@pytest.mark.parametrize(
    ("choice", "looked_at"),
    [
        ({"message": {"content": "{}"}, "finish_reason": "stop"}, True),
        ({"message": {"content": "{}"}}, True),
        ({"message": {"content": "{"}, "finish_reason": "length"}, False),
        ({"message": {"content": "{"}, "finish_reason": "content_filter"}, False),
        ({"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}, False),
        (
            {
                "message": {"content": None, "tool_calls": [{"function": {"name": "f"}}]},
                "finish_reason": "stop",
            },
            False,
        ),
        ({"message": {"content": ""}, "finish_reason": "stop"}, True),
    ],
)
def test_what_was_cut_off_refused_or_calls_tools_is_not_looked_at(choice: Any, looked_at: bool) -> None:
    texts = texts_to_check(choices_of_result(raw({"choices": [choice]}), "t"))
    assert texts == ([json.dumps(choice["message"]["content"]).encode()] if looked_at else [])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ({"skills": [{"name": "a"}]}, ""),
        (' \n{"skills": []} ', ""),
        ({"skills": [{"name": "a"}] * 3 + [{"name": 4}]}, '$.skills[3].name: the value is not of type "string"'),
        ({"skills": [{}]}, '$.skills[0]: "name" is a required property'),
        ({"skills": [{"name": "", "x": 1}]}, "$.skills[0]: Additional properties are not allowed ('x' was unexpected)"),
        ([], '$: the value is not of type "object"'),
        ("Here it is: {}", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("```json\n{}\n```", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"skills": NaN}', "it is not JSON: NaN is not a JSON number"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: Any, wrong: str) -> None:
    said = raw(text if isinstance(text, str) else json.dumps(text))
    assert look(raw(SKILLS), [said]) == (("text", wrong) if wrong else ("", ""))


def test_the_choice_is_named_where_there_are_several() -> None:
    kind, sentence = look(raw(SKILLS), [raw('{"skills": []}'), raw("{}")])
    assert (kind, sentence) == ("text", 'choice 1, $: "skills" is a required property')


def test_sentences_are_bounded_and_do_not_repeat_the_value() -> None:
    secret = "secret " * 10_000
    _, sentence = look(b'{"type": "integer"}', [raw(json.dumps(secret))])
    assert "secret" not in sentence
    _, sentence = look(raw({"enum": ["x" * 1000] * 2}), [raw("1")])
    assert len(sentence) <= MAX_REASON_CHARS + len("$: ")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"required": "a"},
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": "http://127.0.0.1:1/meta"},
        {"$ref": "#/$defs/missing"},
        {"pattern": "(?=a)b"},
        {"pattern": "(a{1,1000}){1,1000}"},
    ],
    ids=str,
)
def test_what_is_no_schema_or_refers_elsewhere_is_none(schema: Any) -> None:
    kind, sentence = look(raw(schema), [raw("1")])
    assert kind == "schema"
    assert len(sentence) <= MAX_PLACE_CHARS + MAX_REASON_CHARS


def test_regular_expressions_take_linear_time() -> None:
    assert look(raw({"pattern": "^(a+)+$"}), [raw(json.dumps("a" * 100_000 + "!"))])[0] == "text"


def test_parts_of_the_schema_itself_may_be_referred_to() -> None:
    schema = {
        "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["v"]}},
        "$ref": "#/$defs/n",
    }
    assert look(raw(schema), [raw('{"v": 1, "next": {"v": 2}}')]) == ("", "")
    assert look(raw(schema), [raw('{"v": 1, "next": {}}')])[1].startswith("$.next:")
