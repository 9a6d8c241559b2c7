"""How much output a body asks for: under any name that a server may read as more."""

import json
from typing import Any

import pytest

from fairlane.gateway.calls.bodies import parse_object
from fairlane.gateway.calls.outputs import MAX_OBJECTS, Output, output_of


def asked(body: dict[str, Any] | str) -> Output:
    text = body if isinstance(body, str) else json.dumps(body)
    return output_of(parse_object(text.encode()))


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 70}, 70),
        ({"max_tokens": 1, "num_predict": 900}, 900),
        ({"max_tokens": 1, "options": {"num_predict": 900}}, 900),
        ({"max_tokens": 1, "parameters": {"max_new_tokens": 900}}, 900),
        ({"max_tokens": 1, "generationConfig": {"maxOutputTokens": 900}}, 900),
        ({"max_tokens": 1, "Options": {"NUM_PREDICT": 900}}, 900),
        ({"max_tokens": 1, "max_tokens_to_sample": 900}, 900),
        ({"max_tokens": 1, "max_gen_toks": 900}, 900),
        ({"max_tokens": 1, "max_length": 900}, 900),
        ({"max_tokens": 1, "min_tokens": 900}, 900),
        ({"max_tokens": 100, "thinking": {"type": "enabled", "budget_tokens": 900}}, 1000),
        ({"max_tokens": 100, "reasoning": {"max_tokens": 900}}, 1000),
        ({"max_tokens": 1, "extra_body": {"options": {"num_predict": 900}}}, 900),
        ({"generationConfig": {"maxOutputTokens": 1, "thinkingConfig": {"thinkingBudget": 900}}}, 901),
        ({"max_tokens": 1, "extra_body": {"google": {"thinking_config": {"thinking_budget": 900}}}}, 901),
        ({"max_tokens": 1, "options": {"schema": {"maxLength": 900}}}, 1),
        ({"max_tokens": 100, "thinking_budget": 0, "min_tokens": 0}, 100),
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 100, "n": 3, "best_of": 5}, 500),
        ({"max_tokens": 100, "parameters": {"num_return_sequences": 4}}, 400),
        ({"max_tokens": 100, "prompt": ["a", "b", "c"], "n": 2}, 600),
        ({"max_tokens": 100, "prompt": [1, 2, 3]}, 100),
        ({"max_tokens": 100, "prompt": [[1, 2], [3]]}, 200),
        ({"max_tokens": 100, "prompt": ["x" * 9000, 'say "it" \\'] * 3}, 600),
        ({"max_tokens": 100, "prompt": [[1] * 9000, [2]]}, 200),
        ({"max_tokens": 100, "prompt": [1] * 9000}, 100),
        ({"max_tokens": None, "n": None, "options": None, "max_new_tokens": 7}, 7),
        ({"options": [1], "thinking": True, "max_tokens": 7}, 7),
    ],
)
def test_the_most_that_one_of_the_names_says_counts(body: dict[str, Any], most: int) -> None:
    assert asked(body).most == most


@pytest.mark.parametrize(
    "more",
    [
        {"num_predict": -1},
        {"options": {"num_predict": -2}},
        {"max_completion_tokens": "90000"},
        {"max_completion_tokens": 90000.0},
        {"max_new_tokens": True},
        {"max_new_tokens": 10**30},
        {"max_new_tokens": [9] * 99},
        {"thinking_budget": -1},
        {"options": {"num_predict": 9, "stop": ["x" * 9000]}},
        {"n": "7"},
    ],
)
def test_what_some_server_may_read_as_no_bound_is_none(more: dict[str, Any]) -> None:
    assert asked({"max_tokens": 1, **more}).most == 0


def test_answers_are_counted_also_where_nothing_bounds_them() -> None:
    assert asked({"n": 100, "prompt": ["a", "b"]}) == Output(0, 200)
    assert asked({"n": 10**6}) == Output(0, 128)
    assert asked({"messages": []}) == Output(0, 1)


def test_only_some_objects_are_looked_into() -> None:
    objects = {"options"[:at] + "options"[at:].upper(): {"num_predict": 5} for at in range(8)}
    objects |= {"parameters"[:at] + "parameters"[at:].upper(): {"num_predict": 5} for at in range(11)}
    assert len(objects) > MAX_OBJECTS
    assert asked({"max_tokens": 1, **objects}).most == 0
    assert asked({"max_tokens": 1, **dict([*objects.items()][:MAX_OBJECTS])}).most == 5


def test_white_space_or_a_number_before_a_thousand_prompts_hides_none_of_them() -> None:
    prompts = json.dumps(["a" * 10] * 1000)[1:]
    for before in (" " * 99, "1,"):
        assert asked('{"max_tokens": 7, "prompt": [' + before + prompts + "}") == Output(7000, 1000)


def test_options_that_say_something_twice_are_relied_on_for_nothing() -> None:
    """Servers take the first of the two, or the last."""
    for twice in ('{"num_predict": 90000, "num_predict": 1}', '{"num_predict": 9, "a": {"b": 1, "b": 1}}'):
        assert asked('{"max_tokens": 1, "options": ' + twice + "}").most == 0
