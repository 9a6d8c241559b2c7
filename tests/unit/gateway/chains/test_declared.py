"""What is wrong with a chain, and where; which variables it takes."""

import asyncio
import json
from typing import Any

import pytest
from declared import JOB_MATCH, PAID, settings_of
from msgspec import Raw
from pydantic import ValidationError

from fairlane.gateway.chains.planner import variables_of
from fairlane.gateway.chains.requests import ChainNotFound, read_request
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import Bodies
from fairlane.gateway.errors import ApiError
from fairlane.gateway.settings import Settings

ONE: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "one"}]}


def says(content: str) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("stage", "member", "sentence"),
    [
        ({}, "model", "needs a `template`, or a `model`"),
        ({"model": "small"}, "messages", "needs `messages` or a `payload`"),
        ({"template": "none"}, "template", "there is no template 'none'; there are sum_up"),
        ({"template": "plain"}, "template", "the route of this name has none"),
        ({"template": "sum_up", "model": "x"}, "model", "says which model runs"),
        ({"template": "sum_up", "variables": {}}, "variables", "needs job, too"),
        ({"template": "sum_up", "variables": {"job": "", "x": ""}}, "variables", "has no x"),
        ({"template": "sum_up", "parameters": {"a": 1}}, "parameters", "the template has them"),
        ({"template": "sum_up", "messages": ONE["messages"]}, "messages", "has no messages"),
        (ONE | {"payload": {}}, "payload", "one of them is the request"),
        (ONE | {"type": "x"}, "type", "for a `payload`"),
        ({"model": "small", "payload": {"model": "other"}}, "payload", "name it once"),
        (says("{{ item }}"), "messages", "item is there with `each` alone"),
        (ONE | {"each": "list", "stream": True}, "stream", "cannot stream"),
        (says("{{ stages.a.content }}"), "messages", "no such stage comes before this one; there are first"),
        (says("{{ stages.first.text }}"), "messages", "of a stage there are content, json"),
        (says("{{ x"), "messages", "message 1: line 1"),
        (ONE | {"when": "not a name"}, "when", "an expression in {{ }}"),
        (ONE | {"name": "first"}, "name", "two stages 'first'"),
        (ONE | {"model": "*"}, "model", "the name of a model or route"),
        (ONE | {"model": "a\nb"}, "model", "the name of a model or route"),
        ({"model": "small", "payload": {}, "type": "a\nb"}, "type", "should be a name"),
        (ONE | {"model": "http:image"}, "model", "an endpoint's, which stages cannot call"),
        ({"model": "small", "payload": {}, "type": "http"}, "type", "for endpoints"),
    ],
)
def test_what_is_wrong_is_told_with_stage_and_member(
    stage: dict[str, Any], member: str, sentence: str
) -> None:
    stages = [{"name": "first", **ONE}, {"name": "a", **stage}]
    with pytest.raises(ValidationError) as caught:
        Settings(**{**JOB_MATCH, "chains": {"c": {"stages": stages}}})
    found = caught.value.errors()[0]["ctx"]["found"]  # type: ignore[typeddict-item]
    places = [(".".join(map(str, locs[0])), message) for locs, message in found]
    assert any(place.startswith(f"chains.c.stages.1.{member}") and sentence in told for place, told in places)
    assert f"stage {stages[1]['name']!r}" in places[0][1]


def test_which_variables_a_chain_takes() -> None:
    settings = Settings(**JOB_MATCH)
    takes = variables_of(
        settings.chains["job_match"], ActiveConfig(settings).plans.templates, settings.routes
    )
    assert (takes.required, takes.optional) == ({"job", "resume"}, {"pages", "notes"})
    given = {"job": "j", "resume": "r", "notes": None}
    assert takes.filled(given) == {"job": "j", "resume": "r", "notes": "", "pages": ""}
    settings = settings_of(a={"template": "sum_up"}, b=says("{{ variables | tojson }}"))
    takes = variables_of(settings.chains["c"], ActiveConfig(settings).plans.templates, settings.routes)
    assert takes.required == {"job"}
    assert takes.any


def asked(chain: Any, **variables: Any) -> Any:
    """What a request comes to."""
    current = ActiveConfig(Settings(**JOB_MATCH))
    said = {"chain": chain, "variables": variables}
    fields = {name: Raw(json.dumps(value).encode()) for name, value in said.items()}

    async def read() -> Any:
        bodies = Bodies()
        return await read_request(current, PAID, fields, bodies)

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("chain", "variables", "sentence"),
    [
        (5, {}, "the name of a configured chain"),
        ("job_match", {}, "missing: job, resume. It takes job, notes, pages, resume"),
        ("job_match", {"job": "", "resume": "", "x": 1}, "unknown: x"),
        ("job_match", {"job": "", "resume": "", "stages": 1}, "no name for a variable"),
        ({"stages": []}, {}, "the name of a configured chain"),
    ],
)
def test_what_is_wrong_with_a_request_is_told(chain: Any, variables: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(chain, **variables)
    assert caught.value.status == 400
    assert sentence in caught.value.message


def test_a_name_that_is_none_is_told_the_nearest() -> None:
    with pytest.raises(ChainNotFound, match="did you mean job_match"):
        asked("job_mach")
