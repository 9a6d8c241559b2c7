"""Which stage comes next, and what it is given."""

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from declared import JOB_MATCH, PAID, after, plan_of, settings_of

from fairlane.gateway.chains.engine import NextStage, NoStage, StageFailed
from fairlane.gateway.settings import Settings
from fairlane.queues.chains import Stage

GIVEN = {"resume": "Ten years", "job": "A cook. ", "pages": ["data:1", "data:2"]}
ONE = {"model": "small", "messages": [{"role": "user", "content": "one"}]}


def says(content: str) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": content}]}


def body_of(comes: NextStage | NoStage) -> Any:
    assert isinstance(comes, NextStage)
    return json.loads(comes.task.payload)


def content_of(comes: NextStage | NoStage) -> Any:
    return body_of(comes)["messages"][0]["content"]


def test_the_seed_chain_from_stage_to_stage() -> None:
    plan = plan_of(Settings(**JOB_MATCH), "job_match", GIVEN, stream=True)
    ocr = after(plan, -1)
    assert isinstance(ocr, NextStage)
    assert (ocr.stage, ocr.task.model, ocr.task.queue, ocr.task.payload) == (
        Stage(0, "ocr"),
        "eyes",
        "paid_vision",
        b"",
    )
    pages = [json.loads(part.payload)["messages"][0]["content"] for part in ocr.parts]
    assert [page[1]["image_url"]["url"] for page in pages] == ["data:1", "data:2"]
    assert [page[0]["text"] for page in pages] == ["Page 0", "Page 1"]

    read = {(0, 0): b'{"content":"One."}', (0, 1): b'"Two."'}
    summary = after(plan, 0, read)
    assert isinstance(summary, NextStage)
    assert content_of(summary) == "Sum up:\nA cook. One.\n\nTwo."
    assert (summary.task.model, summary.task.asked, summary.task.queue) == ("chat", "sum_up", "paid_batch")
    assert summary.task.extras["schema"] == "payload"
    assert summary.task.extras["fallbacks"] == (("small", ""),)
    assert summary.task.model_omitted
    assert summary.task.template.startswith("sum_up\n")
    assert not summary.task.stream

    match = after(plan, 1, read | {(1, -1): b'{"content":"{\\"title\\":\\"Cook\\"}"}'})
    assert isinstance(match, NextStage)
    assert content_of(match) == "Ten years as Cook"
    assert match.task.stream
    assert match.task.queue == "paid_stream"
    assert after(plan, 2) == NoStage(())


def test_a_stage_whose_condition_is_false_is_passed_over() -> None:
    plan = plan_of(Settings(**JOB_MATCH), "job_match", {"resume": "r", "job": "j"})
    comes = after(plan, -1)
    assert isinstance(comes, NextStage)
    assert comes.stage == Stage(1, "summary")
    assert comes.skipped == (Stage(0, "ocr"),)
    assert content_of(comes) == "Sum up:\nj"


def test_conditions_read_what_earlier_stages_came_to() -> None:
    settings = settings_of(
        ask=says("{{ q }}"),
        more=says("more") | {"when": "{{ 'yes' in stages.ask.content }}"},
        less=says("less") | {"when": "{{ stages.more.skipped }}"},
    )
    plan = plan_of(settings, "c", {"q": "?"})
    yes, no = after(plan, 0, {(0, -1): b'"yes"'}), after(plan, 0, {(0, -1): b'"no"'})
    assert isinstance(yes, NextStage)
    assert isinstance(no, NextStage)
    assert (yes.stage.name, no.stage.name) == ("more", "less")
    assert after(plan, 1, {(0, -1): b'"yes"', (1, -1): b'"m"'}) == NoStage((Stage(2, "less"),))


@pytest.mark.parametrize("value", ["", "  ", None, [], {}, False, 0, "false", "None", "0"])
def test_what_says_nothing_or_no_is_false(value: Any) -> None:
    plan = plan_of(settings_of(one=ONE | {"when": "x"}, two=ONE), "c", {"x": value})
    assert after(plan, -1).skipped == (Stage(0, "one"),)


def test_one_item_runs_in_place_and_its_result_is_a_list_all_the_same() -> None:
    settings = settings_of(
        a=says("{{ item }}") | {"each": "list"},
        b=says("{{ stages.a.result | length }} {{ stages.a.content }}"),
    )
    plan = plan_of(settings, "c", {"list": ["x"]})
    comes = after(plan, -1)
    assert isinstance(comes, NextStage)
    assert comes.parts == ()
    assert content_of(comes) == "x"
    assert content_of(after(plan, 0, {(0, -1): b'"X"'})) == "1 X"


def test_parts_may_be_made_of_an_earlier_answer() -> None:
    settings = settings_of(
        split=says("{{ text }}"),
        each=says("{{ item.name }} {{ index }}") | {"each": "{{ stages.split.json.parts }}"},
        join=says("{% for p in stages.each.parts %}[{{ p.content }}]{% endfor %}"),
    )
    plan = plan_of(settings, "c", {"text": "t"})
    split = (
        b'{"choices":[{"message":{"content":"{\\"parts\\":[{\\"name\\":\\"a\\"},{\\"name\\":\\"b\\"}]}"}}]}'
    )
    comes = after(plan, 0, {(0, -1): split})
    assert isinstance(comes, NextStage)
    assert [json.loads(part.payload)["messages"][0]["content"] for part in comes.parts] == ["a 0", "b 1"]
    joined = after(plan, 1, {(0, -1): split, (1, 0): b'"A"', (1, 1): b'"B"'})
    assert content_of(joined) == "[A][B]"


def test_a_value_alone_in_braces_stays_what_it_is() -> None:
    payload = {"list": "{{ list }}", "text": "{{ list }}!", "n": 1, "deep": [{"a": "{{ stages.a.result }}"}]}
    settings = settings_of(a=ONE, b={"model": "small", "type": "tool", "payload": payload})
    plan = plan_of(settings, "c", {"list": [1, 2]})
    comes = after(plan, 0, {(0, -1): b'{"x":[1]}'})
    assert body_of(comes) == {"list": [1, 2], "text": "[1, 2]!", "n": 1, "deep": [{"a": {"x": [1]}}]}
    assert isinstance(comes, NextStage)
    assert comes.task.task_type == "tool"


@pytest.mark.parametrize(
    ("stage", "result", "sentence"),
    [
        (says("{{ stages.a.json.x }}"), b'"no json"', "stages.a.json is no valid JSON"),
        (says("{{ stages.a.json.x }}"), b'"{}"', "has no attribute 'x'"),
        (says("{{ item }}") | {"each": "{{ stages.a.content }}"}, b'"text"', "should come to a list"),
        (says("{{ item }}") | {"each": "{{ stages.a.result }}"}, b"[" + b"1," * 64 + b"1]", "65 items"),
        (says("{{ stages.a.result.x }}"), b'{"x":"' + b"a" * (1 << 20) + b'"}', "more than"),
        (
            says("{% for i in stages.a.result %}{% for j in stages.a.result %}{% endfor %}{% endfor %}"),
            b"[" + b"1," * 19_999 + b"1]",
            "longer than",
        ),
    ],
)
def test_what_cannot_be_made_fails_with_its_stage(
    stage: dict[str, Any], result: bytes, sentence: str
) -> None:
    plan = plan_of(settings_of(a=ONE, b=stage), "c", {})
    with pytest.raises(StageFailed) as caught:
        after(plan, 0, {(0, -1): result})
    assert sentence in caught.value.sentence
    assert caught.value.stage == Stage(1, "b")


def test_output_is_bounded_by_the_stage_and_by_its_route() -> None:
    said = {**JOB_MATCH, "routes": {"short": {"model": "small", "max_output_tokens": 50}}}
    stages = [
        {"name": "a", **ONE, "parameters": {"max_tokens": 20}},
        {"name": "b", "model": "short", "messages": ONE["messages"]},
        {"name": "c", "model": "short", "messages": ONE["messages"], "parameters": {"max_tokens": 60}},
    ]
    plan = plan_of(Settings(**{**said, "chains": {"c": {"stages": stages}}}), "c", {})
    assert body_of(after(plan, -1))["max_tokens"] == 20
    second = after(plan, 0, {(0, -1): b'"x"'})
    assert body_of(second)["max_tokens"] == 50
    assert isinstance(second, NextStage)
    assert second.task.max_output == 50
    with pytest.raises(StageFailed):
        after(plan, 1, {(0, -1): b'"x"', (1, -1): b'"y"'})


def test_a_route_sees_images_and_says_where() -> None:
    image = {"type": "image_url", "image_url": {"url": "{{ picture }}"}}
    said = {
        **JOB_MATCH,
        "routes": {"look": {"model": "small", "vision": {"model": "eyes"}}},
        "templates": {
            "look": {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, image]}],
                "optional": ["picture"],
            }
        },
        "chains": {"c": {"stages": [{"name": "a", "template": "look"}]}},
    }
    settings = Settings(**said)
    with_one, without = (
        after(plan_of(settings, "c", {"picture": "data:x"}), -1),
        after(plan_of(settings, "c", {}), -1),
    )
    assert isinstance(with_one, NextStage)
    assert isinstance(without, NextStage)
    assert (with_one.task.model, with_one.task.queue) == ("eyes", "paid_vision")
    assert (without.task.model, without.task.queue) == ("small", "paid_batch")


def test_the_tier_says_the_model_and_the_queue() -> None:
    free = plan_of(
        Settings(**JOB_MATCH), "job_match", {"resume": "r", "job": "j"}, caller=replace(PAID, tier="free")
    )
    comes = after(free, -1)
    assert isinstance(comes, NextStage)
    assert (comes.task.model, comes.task.queue) == ("small", "free_batch")


def test_values_of_a_request_are_counted_as_often_as_they_are_put() -> None:
    settings = settings_of(a={"model": "small", "payload": {"a": ["{{ list }}"] * 100}})
    plan = plan_of(settings, "c", {"list": [1] * 100_000})
    after(plan_of(settings, "c", {"list": [1]}), -1)
    tracemalloc.start()
    try:
        with pytest.raises(StageFailed, match="more than 16777216 bytes"):
            after(plan, -1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("said", ["{{ stages }}", "{{ stages.a }}", "{{ stages.a.parts }}", "{{ item }}"])
def test_what_is_no_value_of_json_is_told(said: str) -> None:
    settings = settings_of(
        a=ONE, b={"model": "small", "payload": {"x": said}, "each": "{{ stages.a.parts }}"}
    )
    with pytest.raises(StageFailed, match="a stage has content, result and json"):
        after(plan_of(settings, "c", {}), 0, {(0, -1): b'"x"'})


@pytest.mark.parametrize(
    "result", [b'{"a":1e999}', b'{"a":"\\ud800"}', b'{"a":\xff}', b"[" * 200_000 + b"]" * 200_000]
)
def test_a_result_that_cannot_be_read_ends_with_a_sentence(result: bytes) -> None:
    settings = settings_of(a=ONE, b={"model": "small", "payload": {"x": "{{ stages.a.result }}"}})
    with pytest.raises(StageFailed, match=r"stages\.a\.result is no valid JSON"):
        after(plan_of(settings, "c", {}), 0, {(0, -1): result})


@pytest.mark.parametrize(
    ("of_route", "called", "streams"),
    [
        (None, {}, False),
        (True, {}, True),
        (True, {"sets_stream": True}, False),
        (False, {"stream": True}, True),
        (None, {"stream": True}, True),
    ],
)
def test_the_last_stage_streams_as_the_request_sets_else_its_route(
    of_route: bool | None, called: dict[str, bool], streams: bool
) -> None:
    routes = {"sum_up": {"model": "small", **({} if of_route is None else {"stream": of_route})}}
    stages = [{"name": name, "template": "sum_up"} for name in ("a", "b")]
    settings = Settings(**{**JOB_MATCH, "routes": routes, "chains": {"c": {"stages": stages}}})
    plan = plan_of(settings, "c", {"job": "j"}, **called)
    assert [stage.stream for stage in plan.stages] == [False, streams]
    comes = after(plan, 0, {(0, -1): b'{"content":"x"}'})
    assert isinstance(comes, NextStage)
    assert (comes.task.stream, comes.task.queue) == (streams, "paid_stream" if streams else "paid_batch")
