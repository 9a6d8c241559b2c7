"""Routes and templates, as callers meet them."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI
from structlog.testing import capture_logs
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.gateway.prices.prices import MICRO

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
EXAMPLE = yaml.safe_load(
    (Path(__file__).parents[3] / "examples/job-match/fairlane.yaml").read_text(encoding="utf-8")
)
IMAGE = "data:image/png;base64,iVBORw0KGgo="
CALLERS = [key("site", delegating=True), key("ops", scopes=["admin"])]
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def as_tier(tier: str) -> dict[str, str]:
    return {"X-Fairlane-User": "ann", "X-Fairlane-Tier": tier}


async def ran(worker: RawWorker, result: Any = None) -> dict[str, Any]:
    """The next task of a worker, which answers it."""
    task = await worker.take()
    await worker.answer(task, {"content": "fine"} if result is None else result)
    return task


TABLE = {
    ("resume_summary", "paid"): ("deepseek-chat", "paid_batch"),
    ("resume_summary", "free"): ("glm-4.5-flash", "free_batch"),
    ("detailed_resume_summary", "paid"): ("deepseek-reasoner", "paid_batch"),
    ("detailed_resume_summary", "free"): ("glm-4.5-flash", "free_batch"),
    ("job_summary", "paid"): ("deepseek-chat", "paid_batch"),
    ("job_summary", "free"): ("glm-4.5-flash", "free_batch"),
    ("job_match", "paid"): ("deepseek-reasoner", "paid_stream"),
    ("job_match", "free"): ("glm-4.5-flash", "free_stream"),
    ("interview_prep", "paid"): ("deepseek-chat", "paid_stream"),
    ("interview_prep", "free"): ("glm-4.5-flash", "free_stream"),
    ("resume_customize", "paid"): ("deepseek-chat", "paid_batch"),
    ("resume_customize", "free"): ("glm-4.5-flash", "free_batch"),
}
"""What the requirements ask for: model and queue of each task and tier."""


OPERATOR = {"Authorization": f"Bearer {secret('ops')}"}


async def recorded(talk: Talk, tasks: int) -> bool:
    return len((await talk.http.get("/api/admin/usage/tasks", headers=OPERATOR)).json()["tasks"]) == tasks


async def test_the_examples_table_runs_each_task_on_its_model_and_in_its_queue(gateway: Start) -> None:
    models = list(EXAMPLE["models"])
    async with (
        gateway(**EXAMPLE, keys=CALLERS) as talk,
        talk.worker2(models) as worker,
        talk.client(secret("site")) as site,
    ):
        for (name, tier), (model, queue) in TABLE.items():
            given = {"resume": "R", "job": "J"}
            body = {"template": name, "variables": dict(given), "async": True}
            if "summary" in name:
                del body["variables"]["job" if "resume" in name else "resume"]  # type: ignore[attr-defined]
            accepted = await site.post("/api/tasks", json=body, headers=as_tier(tier))
            assert accepted.status_code == 202, accepted.text
            told = accepted.json()
            assert (told["requestedModel"], told["model"], told["template"]["name"]) == (name, model, name)
            task = await ran(worker, '{"headline":"h","skills":[]}')
            assert (task["model"], task["payload"]["model"], task["taskType"]) == (model, model, "openaiLike")
            assert task["stream"] is (name in ("job_match", "interview_prep"))
            assert "R" in str(task["payload"]["messages"]) or "J" in str(task["payload"]["messages"])
            events = (await site.get(f"/api/task/{told['taskId']}/events", headers=as_tier(tier))).text
            assert f'"model":"{model}","queue":"{queue}"' in events, "the route's name is no model"
            poll = (await site.get(told["statusUrl"], headers=as_tier(tier))).json()
            assert (poll["requestedModel"], poll["model"], poll["template"]) == (
                name,
                model,
                told["template"],
            )
        await until(lambda: recorded(talk, len(TABLE)))
        rows = (await talk.http.get("/api/admin/usage/tasks", headers=OPERATOR)).json()["tasks"]
        asked = {(row["route"], row["tier"]): (row["model"], row["queue"]) for row in rows}
        assert asked == TABLE
        assert all(row["template"] == row["route"] and row["templateVersion"] for row in rows)


@pytest.mark.parametrize("tier", ["paid", "free"])
async def test_a_request_with_a_picture_goes_to_the_model_that_sees(gateway: Start, tier: str) -> None:
    async with (
        gateway(**EXAMPLE, keys=CALLERS) as talk,
        talk.worker2(list(EXAMPLE["models"])) as worker,
        talk.client(secret("site"), **as_tier(tier)) as site,
    ):
        body: dict[str, Any] = {"template": "job_summary", "variables": {"job_image": IMAGE}, "async": True}
        told = (await site.post("/api/tasks", json=body)).json()
        assert told["model"] == "glm-4v"
        task = await ran(worker)
        assert task["payload"]["messages"][1]["content"][1]["image_url"]["url"] == IMAGE
        assert f'"queue":"{tier}_vision"' in (await site.get(f"/api/task/{told['taskId']}/events")).text
        chat = {
            "model": "job_summary",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}],
        }
        call = talk.later(site.post("/v1/chat/completions", json=chat))
        assert (await ran(worker))["model"] == "glm-4v"
        assert (await call).headers["x-fairlane-model"] == "glm-4v"


async def test_who_has_no_quota_left_goes_on_with_the_model_of_the_other_tier(gateway: Start) -> None:
    quota = {"of": "key", "budget": 1, "per": "day", "otherwise": "free"}
    prices = [{"model": "deepseek-reasoner", "input": 0, "output": 100}]
    callers = [key("shop", tier="paid", quota=quota), key("ops", scopes=["admin"])]
    async with (
        gateway(**EXAMPLE, keys=callers, prices=prices) as talk,
        talk.worker2(list(EXAMPLE["models"])) as worker,
        talk.client(secret("shop")) as shop,
    ):
        for model, tokens in (("deepseek-reasoner", 9000), ("glm-4.5-flash", 1)):
            body = {"template": "job_match", "variables": {"resume": model, "job": "J"}, "stream": False}
            call = talk.later(shop.post("/api/tasks", json=body))
            task = await worker.take()
            assert (task["model"], task["payload"]["model"]) == (model, model)
            usage = {"inputTokens": 1, "outputTokens": tokens}
            await worker.answer(task, {"content": "x" * tokens}, usage=usage)
            answer = await call
            assert (answer.status_code, answer.headers["x-fairlane-model"]) == (200, model)
        assert (await shop.get("/api/me")).json()["quota"]["budget"]["used"] == 9000 * 100 / MICRO


async def test_a_route_is_a_model_to_openais_clients(gateway: Start) -> None:
    routes = {"smart": {"model": "m", "max_output_tokens": 50, "tiers": {"paid": {"model": "big"}}}}
    async with (
        gateway(routes=routes) as talk,
        talk.worker2(["m"]) as worker,
        AsyncOpenAI(base_url=f"{talk.served.url}/v1", api_key="x", max_retries=0) as client,
    ):
        assert "smart" in [model.id async for model in client.models.list()]
        assert (await client.models.retrieve("smart")).id == "smart"
        call = talk.later(
            client.chat.completions.create(model="smart", messages=[{"role": "user", "content": "hi"}])
        )
        task = await ran(worker)
        assert task["payload"] == {"model": "m", **CHAT, "max_tokens": 50}
        assert (await call).model == "m", "the model that answered"
        stream = talk.later(
            client.chat.completions.create(
                model="smart", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=20
            )
        )
        task = await ran(worker)
        assert task["payload"]["max_tokens"] == 20
        assert {chunk.model async for chunk in await stream} == {"m"}
        refused = await talk.http.post(
            "/v1/chat/completions", json={**CHAT, "model": "smart", "max_tokens": 51}
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == (
            "The route smart allows 50 tokens of output: max_tokens may be 50 at most"
        )


async def test_a_version_1_worker_reads_the_model_in_the_payload(gateway: Start) -> None:
    async with gateway(routes={"smart": {"model": "m"}}) as talk, talk.worker() as worker:
        call = talk.later(talk.http.post("/api/openai", json={"model": "smart", "q": 1}))
        task = await worker.take()
        assert task["payload"] == {"model": "m", "q": 1}
        await worker.answer(task, {"x": 1})
        assert (await call).json() == {"x": 1}
        call = talk.later(
            talk.http.post("/api/tasks", json={"type": "ocr", "model": "smart", "payload": {"q": 1}})
        )
        task = await worker.take()
        assert task["payload"] == {"q": 1}, "what is no body of OpenAI's and names no model stays as it is"
        await worker.answer(task, {"x": 2})
        assert (await call).json() == {"x": 2}
        call = talk.later(
            talk.http.post(
                "/api/tasks", json={"type": "ocr", "payload": {"Model": "smart", "model": "smart", "q": 2}}
            )
        )
        task = await worker.take()
        assert task["payload"] == {"model": "m", "q": 2}
        await worker.answer(task, {"x": 3})
        await call


async def test_a_key_that_may_use_a_route_may_not_use_its_model(gateway: Start) -> None:
    callers = [key("narrow", models=["smart"]), key("ops", scopes=["admin"])]
    async with (
        gateway(
            routes={"smart": {"model": "m"}, "other": {"model": "m"}},
            templates={"other": {"messages": [{"role": "user", "content": "x"}]}},
            keys=callers,
        ) as talk,
        talk.worker2(["m"]) as worker,
        talk.client(secret("narrow")) as narrow,
    ):
        for name in ("m", "other"):
            assert (
                await narrow.post("/v1/chat/completions", json={**CHAT, "model": name})
            ).status_code == 404
        assert (await narrow.post("/api/tasks", json={"template": "other"})).status_code == 404
        listed = (await narrow.get("/api/routes")).json()["routes"]
        assert [(route["name"], route["model"]) for route in listed] == [("smart", "m")]
        assert [row["id"] for row in (await narrow.get("/v1/models")).json()["data"]] == ["smart"]
        call = talk.later(narrow.post("/v1/chat/completions", json={**CHAT, "model": "smart"}))
        assert (await ran(worker))["model"] == "m"
        assert (await call).status_code == 200


TEMPLATES = {
    "greet": {
        "messages": [{"role": "user", "content": "Hello {{ name }}{% if more %}, {{ more }}{% endif %}!"}],
        "locales": {"de": [{"role": "user", "content": "Hallo {{ name }}!"}]},
        "optional": ["more"],
        "parameters": {"temperature": 0.5},
    }
}


@pytest.mark.parametrize(
    ("body", "status", "code", "sentence"),
    [
        ({"template": "gret"}, 404, "TEMPLATE_NOT_FOUND", "There is no template 'gret'; did you mean greet?"),
        (
            {"template": "both"},
            404,
            "TEMPLATE_NOT_FOUND",
            "'both' is a chain and no template: name it in `chain`",
        ),
        (
            {"template": "greet", "variables": {"nam": "x"}},
            400,
            "INVALID_REQUEST",
            "The variables do not fit the template greet: missing: name; unknown: nam. It takes more, name",
        ),
        (
            {"template": "greet", "name": "x"},
            400,
            "INVALID_REQUEST",
            "A task of a template has no 'name': the template's `parameters` set what the model gets, "
            "and `variables` fill it in",
        ),
        (
            {"template": "greet", "variables": {"name": list(range(70_000))}},
            400,
            "INVALID_REQUEST",
            "the variables that are no texts may have 262144 bytes of JSON together",
        ),
    ],
)
async def test_what_cannot_be_filled_in_is_refused_with_what_is_wrong(
    shared_gateway: Start, body: dict[str, Any], status: int, code: str, sentence: str
) -> None:
    both = {"stages": [{"name": "a", "template": "greet", "model": "m"}]}
    async with shared_gateway(templates=TEMPLATES, chains={"both": both}) as talk:
        answer = await talk.http.post("/api/tasks", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.json()["error"] == sentence


async def test_a_template_makes_no_larger_body_than_a_caller_may_send(gateway: Start) -> None:
    thrice = {"messages": [{"role": "user", "content": "{{ x }}{{ x }}{{ x }}"}]}
    async with gateway(templates={"thrice": thrice}, max_body_bytes=1 << 20) as talk:
        for text in ("x" * 400_000, "é" * 200_000, '"' * 200_000):  # the last: two bytes each, in JSON
            answer = await talk.http.post("/api/tasks", json={"template": "thrice", "variables": {"x": text}})
            assert answer.status_code == 400, answer.text
            assert answer.json()["code"] == "INVALID_REQUEST"
        body = {"template": "thrice", "variables": {"x": "é" * 150_000}, "model": "m", "async": True}
        async with talk.worker2(["m"]) as worker:
            assert (await talk.http.post("/api/tasks", json=body)).status_code == 202
            assert (await ran(worker))["payload"]["messages"][0]["content"] == "é" * 450_000


async def test_a_template_without_a_route_runs_on_the_model_that_is_named(gateway: Start) -> None:
    async with gateway(templates=TEMPLATES) as talk, talk.worker2(["m", "default"]) as worker:
        body = {"template": "greet", "variables": {"name": "{{ 7*7 }}"}, "locale": "de-AT", "model": "m"}
        call = talk.later(talk.http.post("/api/tasks", json=body))
        task = await ran(worker)
        assert task["payload"] == {
            "model": "m",
            "messages": [{"role": "user", "content": "Hallo {{ 7*7 }}!"}],
            "temperature": 0.5,
        }, "a variable is never read as a template"
        assert (await call).json()["content"] == "fine"
        del body["model"], body["locale"]
        call = talk.later(
            talk.http.post("/api/tasks", json={**body, "variables": {"name": "a", "more": "b"}})
        )
        task = await ran(worker)
        assert (task["model"], task["payload"]["messages"][0]["content"]) == ("default", "Hello a, b!")
        await call


async def test_a_route_bounds_time_and_says_what_is_not_said(gateway: Start) -> None:
    routes = {"slow": {"model": "m", "timeout_ms": 7000, "mode": "batch", "stream": True}}
    async with gateway(routes=routes) as talk, talk.worker2(["m"]) as worker:
        async with talk.events("/api/openai", json={"model": "slow", "timeout": 60_000}) as reader:
            task = await worker.take()
            assert task["timeoutMs"] <= 7000
            assert task["stream"] is True
            await worker.answer(task, {"x": 1})
            kinds = [frame.event for frame in await reader.rest()]
        assert kinds[-1] == "done"
        call = talk.later(talk.http.post("/api/openai", json={"model": "slow", "stream": False}))
        assert (await ran(worker, {"x": 2}))["timeoutMs"] <= 7000
        assert (await call).json() == {"x": 2}


async def test_the_names_that_may_be_used_are_told_with_what_they_come_to(gateway: Start) -> None:
    async with gateway(**EXAMPLE) as talk:
        told = (await talk.http.get("/api/routes")).json()
        by_name = {route["name"]: route for route in told["routes"]}
        assert set(by_name) == set(EXAMPLE["routes"])
        match = by_name["job_match"]
        assert (match["tier"], match["model"], match["queue"], match["stream"]) == (
            *("free", "glm-4.5-flash", "free_stream"),
            True,
        )
        assert by_name["job_summary"]["vision"]["model"] == "glm-4v"
        template = next(one for one in told["templates"] if one["name"] == "job_match")
        assert (template["locales"], template["variables"]) == (["en", "zh"], ["job", "notes", "resume"])
        assert json.dumps(told)


async def test_the_same_template_with_the_same_variables_is_one_task_for_a_while(gateway: Start) -> None:
    routes = {"greet": {"model": "m", "same_task_ms": 60_000, "tiers": {"paid": {"model": "m2"}}}}
    async with (
        gateway(routes=routes, templates=TEMPLATES, keys=CALLERS) as talk,
        talk.worker2(["m", "m2"], slots=8) as worker,
        talk.client(secret("site")) as site,
    ):

        async def submit(name: str, user: str, **more: Any) -> dict[str, Any]:
            body = {"template": "greet", "variables": {"name": name}, "async": True, **more}
            answer = await site.post("/api/tasks", json=body, headers={"X-Fairlane-User": user})
            assert answer.status_code == 202, answer.text
            told: dict[str, Any] = answer.json()
            return told

        first = await submit("a", "ann")
        assert "replay" not in first
        again = await submit("a", "ann", metadata={"n": 2}, stream=True)
        assert (again["taskId"], again["replay"]) == (first["taskId"], True)
        assert again["idemKey"].startswith("greet ")
        half = {"target": "route", "name": "greet", "values": {"model": "m2"}, "percent": 50}
        created = await talk.http.post("/api/admin/overrides", json=half, headers=OPERATOR)
        assert created.status_code == 201, created.text
        for _ in range(8):
            assert (await submit("a", "ann"))["taskId"] == first["taskId"], "in the share or not"
        for name, user, more in (
            ("b", "ann", {}),
            ("a", "bob", {}),
            ("a", "ann", {"locale": "de"}),
            ("a", "ann", {"idempotencyKey": "own"}),
        ):
            assert (await submit(name, user, **more))["taskId"] != first["taskId"]
        for _ in range(5):
            await ran(worker)
        await worker.nothing_more()
        sync = {"template": "greet", "variables": {"name": "a"}}
        answer = await site.post("/api/tasks", json=sync, headers={"X-Fairlane-User": "ann"})
        assert (answer.headers["idempotency-replayed"], answer.json()["content"]) == ("true", "fine")
        assert answer.headers["x-task-id"] == first["taskId"]


async def test_a_route_whose_model_nobody_runs_is_a_503_that_the_log_tells_by_both_names(
    gateway: Start,
) -> None:
    async with gateway(routes={"assistant": {"model": "gone"}}) as talk, talk.worker2(["m"]):
        with capture_logs() as logs:
            answer = await talk.http.post("/v1/chat/completions", json={**CHAT, "model": "assistant"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "NO_WORKER")
        (line,) = [line for line in logs if line["event"] == "call rejected"]
        assert (line["requestedModel"], line["model"], line["code"]) == ("assistant", "gone", "NO_WORKER")
