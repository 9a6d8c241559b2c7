import json
from typing import Any

import pytest

from fairlane.streaming.views.usage import Counts, normalise_usage, openai_usage, usage_of_both


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"inputTokens":3,"outputTokens":4}', (3, 4)),
        (b'{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}', (3, 4)),
        (b'{"input_tokens":3,"output_tokens":4}', (3, 4)),
        (b'{"inputTokens":3}', (3, None)),
        (b'{"inputTokens":3.0,"outputTokens":0}', (3, 0)),
        (b'{"inputTokens":-1,"prompt_tokens":5}', (5, None)),
        (b'{"inputTokens":-1,"outputTokens":1e300}', (None, None)),
        (b'{"inputTokens":1e999,"outputTokens":12345678901234567890123}', (None, None)),
        (b'{"inputTokens":"3","outputTokens":true}', (None, None)),
        (b'{"inputTokens":3.5,"outputTokens":[1]}', (None, None)),
        (b'{"inputTokens":NaN,"outputTokens":4}', (None, None)),
        (b'{"inputTokens":null,"outputTokens":{}}', (None, None)),
        (b"[1,2]", (None, None)),
        (b"null", (None, None)),
        (b"", (None, None)),
        (b"{", (None, None)),
        (b'{"a":' + b"[" * 100_000, (None, None)),
        (None, (None, None)),
    ],
)
def test_usage_is_read_whatever_it_is_called_and_garbage_is_ignored(
    raw: bytes | None, expected: tuple[int | None, int | None]
) -> None:
    assert normalise_usage(raw)[:2] == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"inputTokens":9,"outputTokens":4,"cachedTokens":7,"reasoningTokens":2}', (9, 4, 7, 2)),
        (
            b'{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":7},'
            b'"completion_tokens_details":{"reasoning_tokens":2}}',
            (9, 4, 7, 2),
        ),
        (
            b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":0},"output_tokens":4,'
            b'"output_tokens_details":{"reasoning_tokens":2}}',
            (9, 4, 0, 2),
        ),
        (b'{"input_tokens":9,"output_tokens":4,"cache_read_input_tokens":100}', (9, 4, 100, None)),
        (
            b'{"prompt_tokens":9,"completion_tokens":4,"prompt_cache_hit_tokens":7,"prompt_tokens_details":null}',
            (9, 4, 7, None),
        ),
        (
            b'{"inputTokens":1,"outputTokens":1,"prompt_tokens_details":{"cached_tokens":"7"}}',
            (1, 1, None, None),
        ),
    ],
)
def test_cached_and_reasoning_tokens_are_read_where_providers_tell_them(
    raw: bytes, expected: tuple[int | None, ...]
) -> None:
    assert normalise_usage(raw) == expected


def test_the_workers_own_usage_comes_before_that_of_its_result() -> None:
    result = b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    assert normalise_usage(b'{"inputTokens":9,"outputTokens":9}', result)[:2] == (9, 9)
    assert normalise_usage(None, result)[:2] == (1, 2)
    assert normalise_usage(b'{"pages":3}', result)[:2] == (1, 2)
    assert normalise_usage(b'"much"', b'"text"') == Counts()


def test_openai_usage_has_its_three_counts_and_keeps_details() -> None:
    raw = b'{"inputTokens":3,"outputTokens":4,"prompt_tokens_details":{"cached_tokens":2},"cost":0.5}'
    assert json.loads(openai_usage(raw) or b"") == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
        "cost": 0.5,
    }


@pytest.mark.parametrize(
    ("told", "sum_of_both"),
    [
        (
            {"inputTokens": 3, "outputTokens": 4},
            {"inputTokens": 13, "outputTokens": 9, "repaired": {"inputTokens": 10, "outputTokens": 5}},
        ),
        (
            {
                "prompt_tokens": 3,
                "completion_tokens": 4,
                "total_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 1},
                "cost": 0.5,
            },
            {
                "prompt_tokens": 13,
                "completion_tokens": 9,
                "total_tokens": 22,
                "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 3},
                "cost": 0.5,
                "repaired": {"prompt_tokens": 10, "completion_tokens": 5},
            },
        ),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 1},
            {
                "input_tokens": 13,
                "cache_read_input_tokens": 7,
                "outputTokens": 5,
                "repaired": {"input_tokens": 10, "outputTokens": 5},
            },
        ),
        ({}, {"inputTokens": 10, "outputTokens": 5, "repaired": {"inputTokens": 10, "outputTokens": 5}}),
    ],
)
def test_the_usage_of_two_answers_keeps_its_names_and_says_which_part_was_the_first_ones(
    told: dict[str, Any], sum_of_both: dict[str, Any]
) -> None:
    both = usage_of_both(json.dumps(told).encode(), (10, 5, 6, 2))
    assert json.loads(both) == sum_of_both
    own, counts = normalise_usage(json.dumps(told).encode()), normalise_usage(both)
    assert (counts.input, counts.output) == (10 + (own.input or 0), 5 + (own.output or 0))


def test_openais_surfaces_tell_the_first_answers_part_in_openais_names() -> None:
    both = usage_of_both(b'{"inputTokens":3,"outputTokens":4}', (10, 5, -1, -1), estimated=True)
    assert json.loads(openai_usage(both) or b"") == {
        "prompt_tokens": 13,
        "completion_tokens": 9,
        "total_tokens": 22,
        "estimated": True,
        "repaired": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
