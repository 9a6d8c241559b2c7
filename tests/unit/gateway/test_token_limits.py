"""What a token fixes of a task, and how its holder might try to have more."""

import json
from typing import Any

import pytest

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.signed_tokens import Claims
from fairlane.gateway.core.bodies import parse_object
from fairlane.gateway.core.spec import OWN_FIELDS, Options, TaskBuilder
from fairlane.gateway.errors import TokenForbids
from fairlane.gateway.routing.plans import Plan
from fairlane.gateway.routing.routes import Rule
from fairlane.gateway.settings import Settings
from fairlane.queues.tasks import TaskSpec

SETTINGS = Settings()


def make(
    claims: dict[str, Any],
    body: str = '{"messages":[]}',
    task_type: str = "openaiLike",
    own: tuple[str, ...] = (),
    **options: Any,
) -> TaskSpec:
    caller = Caller("site/ann", "free", "site", claims=Claims(exp=1, **claims))
    text = body.encode()
    builder = TaskBuilder(SETTINGS, caller, "t", task_type, Options(**options), own)
    return builder.task(Plan("m", "m", "free"), text, parse_object(text) if body.startswith("{") else {})


def sent(claims: dict[str, Any], body: str = '{"messages":[]}', **more: Any) -> dict[str, Any]:
    """What the worker gets."""
    return dict(json.loads(make(claims, body, **more).payload))


def test_what_is_fixed_is_applied_and_the_same_may_be_said() -> None:
    task = make({"priority": 3, "mode": "batch", "timeout": 20_000})
    assert (task.priority, task.queue, task.timeout_ms) == (3, "free_batch", 20_000)
    same = make({"priority": 3, "mode": "batch", "timeout": 20_000}, priority=3, mode="batch", timeout=20_000)
    assert same == task
    free = make({}, priority=5, mode="vision", timeout=9000)
    assert (free.priority, free.queue, free.timeout_ms) == (5, "free_vision", 9000)
    later = make({"timeout": 20_000}, wait=False)
    assert later.timeout_ms == 20_000
    assert make({"timeout": 20_000}, timeout=9000).timeout_ms == 9000
    assert make({"priority": 0}).priority == 0


@pytest.mark.parametrize(
    ("claims", "options", "param"),
    [
        ({"priority": 0}, {"priority": 5}, "priority"),
        ({"priority": 3}, {"priority": 2}, "priority"),
        ({"mode": "batch"}, {"mode": "stream"}, "mode"),
        ({"mode": "batch"}, {"mode": 7}, "mode"),
        ({"timeout": 20_000}, {"timeout": 20_001}, "timeout"),
        ({"timeout": 20_000}, {"timeout": 1e300}, "timeout"),
    ],
)
def test_what_contradicts_the_token_is_refused(claims: Any, options: Any, param: str) -> None:
    with pytest.raises(TokenForbids) as refused:
        make(claims, **options)
    assert (refused.value.status, refused.value.param) == (403, param)


def test_output_is_bounded_under_the_name_that_the_token_gives() -> None:
    assert sent({"max_tokens": 100}) == {"messages": [], "max_tokens": 100}
    assert sent({"max_completion_tokens": 100}) == {"messages": [], "max_completion_tokens": 100}
    assert sent({"max_tokens": 100}, '{"max_tokens": 7}') == {"max_tokens": 7}
    assert sent({"max_tokens": 100}, '{"max_tokens": null}') == {"max_tokens": 100}
    assert sent({"max_tokens": 100}, '{"max_completion_tokens": 7, "max_output_tokens": 9}') == {
        "max_tokens": 7
    }
    assert sent({"max_tokens": 100}, '{"n": 3}') == {"n": 3, "max_tokens": 33}
    assert sent({"max_tokens": 100}, '{"n": 3, "best_of": 10}') == {"n": 3, "best_of": 10, "max_tokens": 10}
    assert sent({"max_tokens": 100}, "{}") == {"max_tokens": 100}
    assert make({"max_tokens": 100}).max_output == 100, "limits and fairness reckon with it"
    assert make({"max_tokens": 100}, '{"n": 3}').max_output == 99
    assert sent({}, '{"max_tokens": 100000}') == {"max_tokens": 100_000}, (
        "nothing is bounded that is not named"
    )


@pytest.mark.parametrize(
    "body",
    [
        '{"max_tokens": 101}',
        '{"max_tokens": 10, "max_completion_tokens": 101}',
        '{"max_output_tokens": 101}',
        '{"max_tokens": 0}',
        '{"max_tokens": -1}',
        '{"max_tokens": 1e9}',
        '{"max_tokens": 50.5}',
        '{"max_tokens": "50"}',
        '{"max_tokens": true}',
        '{"max_tokens": [1]}',
        '{"max_tokens": "' + "5" * 9000 + '"}',
        '{"n": 3, "max_tokens": 34}',
        '{"n": 101}',
        '{"n": 0}',
        '{"n": "2"}',
        '{"n": true}',
        '{"best_of": 129}',
        '{"max_tokens": 99999999999999999999999}',
    ],
)
def test_no_body_has_more_output_than_its_token_allows(body: str) -> None:
    with pytest.raises(TokenForbids):
        make({"max_tokens": 100}, body)


def test_a_member_that_is_said_twice_reaches_the_worker_once() -> None:
    payload = make(
        {"max_tokens": 100}, '{"max_tokens": 5000, "max_tokens": 50, "model": "x", "model": "m"}'
    ).payload
    assert (payload.count(b"max_tokens"), payload.count(b'"model"')) == (1, 1)
    assert json.loads(payload) == {"max_tokens": 50, "model": "m"}
    assert make({}, '{"model": "x", "model": "m"}').payload == b'{"model":"m"}'


def test_our_own_members_stay_out_of_a_native_payload_and_stand_on_v1() -> None:
    body = '{"priority": 1, "metadata": {"a": 1}, "x": [1, 2.50]}'
    assert make({"max_tokens": 9}, body, own=OWN_FIELDS).payload == b'{"x":[1, 2.50],"max_tokens":9}'
    assert sent({}, body).keys() == {"priority", "metadata", "x"}


def test_what_has_no_output_in_tokens_is_left_alone() -> None:
    embedding = sent({"max_tokens": 9}, '{"input": "x"}', task_type="openaiEmbedding", on_v1=True)
    assert embedding == {"input": "x"}
    assert make({}, "[1,2]", task_type="image").payload == b"[1,2]"


@pytest.mark.parametrize(
    ("prompt", "each"),
    [
        ('"a"', 100),
        ('["a"]', 100),
        ("[1,2,3]", 100),
        ('["a","b"]', 50),
        ("[[1,2],[3],[4],[5]]", 25),
        ("[]", 100),
    ],
)
def test_all_prompts_of_a_body_share_what_the_token_allows(prompt: str, each: int) -> None:
    assert sent({"max_tokens": 100}, f'{{"prompt":{prompt}}}')["max_tokens"] == each


@pytest.mark.parametrize(
    ("body", "task_type", "says"),
    [
        (json.dumps({"prompt": ["a"] * 101}), "openaiLike", "fewer than there are answers"),
        (json.dumps({"prompt": [1] * 100_000}), "openaiLike", "must be a text"),
        ('"text"', "openaiLike", "must be an object"),
        ("[1]", "other", "must be an object"),
        ('{"max_tokens":101}', "openaiEmbedding", "100 at most"),
    ],
)
def test_no_form_of_a_body_passes_the_bound(body: str, task_type: str, says: str) -> None:
    with pytest.raises(TokenForbids, match=says):
        make({"max_tokens": 100}, body, task_type)


@pytest.mark.parametrize(("most", "downgraded"), [(500, False), (50, True)])
def test_a_request_beyond_the_bound_of_the_other_tier_is_not_downgraded(most: int, downgraded: bool) -> None:
    other = Plan("r", "cheap", "free", rule=Rule("r", "cheap", max_output_tokens=100))
    plan = Plan("r", "dear", "paid", rule=Rule("r", "dear", max_output_tokens=1000), downgrade=other)
    body = b'{"max_tokens":%d}' % most
    builder = TaskBuilder(SETTINGS, Caller("ann", "paid", "k"), "t", "openaiLike", Options())
    task = builder.task(plan, body, parse_object(body))
    assert (json.loads(task.payload), task.model) == ({"max_tokens": most}, "dear")
    assert (task.downgrade is not None) is downgraded
