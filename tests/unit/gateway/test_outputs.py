"""How much output a body asks for."""

import json
from typing import Any

import pytest

from fairlane.gateway.core.bodies import parse_object
from fairlane.gateway.core.output_size import OutputSize, output_size


def asked(body: dict[str, Any] | str) -> OutputSize:
    text = body if isinstance(body, str) else json.dumps(body)
    return output_size(parse_object(text.encode()))


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_output_tokens": 5}, 5),
        ({"max_tokens": None, "n": None}, 0),
        ({"max_tokens": 5, "max_completion_tokens": 70}, 70),
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 100, "n": 3, "best_of": 5}, 500),
        ({"max_tokens": 100, "prompt": ["a", "b", "c"], "n": 2}, 600),
        ({"max_tokens": 100, "prompt": [1, 2, 3]}, 100),
        ({"max_tokens": 100, "prompt": [[1, 2], [3]]}, 200),
        ({"max_tokens": 100, "prompt": ["x" * 9000, 'say "it" \\'] * 3}, 600),
        ({"max_tokens": 100, "prompt": [[1] * 9000, [2]]}, 200),
        ({"max_tokens": 100, "prompt": [1] * 9000}, 100),
    ],
)
def test_the_largest_bound_counts_for_every_answer(body: dict[str, Any], most: int) -> None:
    assert asked(body).most == most


@pytest.mark.parametrize(
    "more",
    [
        {"max_completion_tokens": "90000"},
        {"max_completion_tokens": 90000.0},
        {"max_output_tokens": True},
        {"max_output_tokens": 10**30},
        {"max_output_tokens": [9] * 99},
        {"max_completion_tokens": -1},
        {"n": "7"},
    ],
)
def test_a_bound_that_is_no_number_is_none(more: dict[str, Any]) -> None:
    assert asked({"max_tokens": 1, **more}).most == 0


def test_answers_are_counted_also_where_nothing_bounds_them() -> None:
    assert asked({"n": 100, "prompt": ["a", "b"]}) == OutputSize(0, 200)
    assert asked({"n": 10**6}) == OutputSize(0, 128)
    assert asked({"messages": []}) == OutputSize(0, 1)


def test_white_space_or_a_number_before_a_thousand_prompts_hides_none_of_them() -> None:
    prompts = json.dumps(["a" * 10] * 1000)[1:]
    for before in (" " * 99, "1,"):
        assert asked('{"max_tokens": 7, "prompt": [' + before + prompts + "}") == OutputSize(7000, 1000)
