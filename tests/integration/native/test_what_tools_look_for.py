"""What load generators, balancers and dashboards look for: health, models, request ids, times, and what is not here."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import openai
import pytest
from structlog.testing import capture_logs
from tests.support.serving import NO_TLS, until
from tests.support.talk import Talk, talking

import fairlane.gateway.core.models
from fairlane.gateway.core.submit import Submit
from fairlane.gateway.http.request import Request
from fairlane.workers.tasktypes import IMAGE

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT = "/v1/chat/completions"


async def test_health_has_the_names_that_probes_ask_for(gateway: Start) -> None:
    async with gateway() as talk:
        for name in ("/readyz", "/livez"):
            assert (await talk.http.get(name)).status_code == 200
            head = await talk.http.head(name)
            assert (head.status_code, head.content) == (200, b"")
        await talk.served.gateway.drain()
        for name, status in (("/readyz", 503), ("/livez", 200)):
            assert (await talk.http.get(name)).status_code == status


async def test_models_are_never_an_empty_list_while_a_worker_takes_any(gateway: Start) -> None:
    async with gateway() as talk:

        async def listed() -> list[str]:
            return [row["id"] for row in (await talk.http.get("/v1/models")).json()["data"]]

        assert await listed() == []
        async with talk.worker():
            assert await listed() == ["default"]
            async with talk.worker2(["m"]):
                assert await listed() == ["m"]
                assert (await talk.http.get("/v1/models/gpt-4o-mini")).json()["id"] == "gpt-4o-mini"
        assert (await talk.http.get("/v1/models/gpt-4o-mini")).status_code == 404


async def test_images_without_a_model_are_of_the_only_one(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["chat"]), talk.worker2(["a"], taskTypes=[IMAGE]) as worker:
        call = talk.later(talk.http.post("/v1/images/generations", json={"prompt": "x", "model": ""}))
        task = await worker.take()
        assert task["payload"]["model"] == "a"
        await worker.answer(task, {"created": 1, "data": [{"b64_json": "eA=="}]})
        assert (await call).status_code == 200
        async with talk.worker2(["b"], taskTypes=[IMAGE]):
            answer = await talk.http.post("/v1/images/generations", json={"prompt": "x"})
            assert answer.json()["error"]["message"] == "model is missing: one of a, b"
        assert (await talk.http.head("/api/hello")).status_code == 200


async def test_a_configured_model_was_created_when_it_was_configured(redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path, models={"m": {}}) as talk, talk.worker():
        row = (await talk.http.get("/v1/models/m")).json()
        origins = talk.served.gateway.tasks.settings.origins
        assert row == {
            "id": "m",
            "object": "model",
            "created": origins.modified_ms // 1000,
            "owned_by": "fairlane",
        }


async def test_a_model_has_the_context_and_owner_that_workers_of_any_replica_tell(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairlane.gateway.core.models, "CACHE_S", 0.0)
    long, short = {"contextLength": 32_768, "ownedBy": "vllm"}, {"contextLength": 8192}
    async with talking(redis_url, tmp_path) as here, talking(redis_url, tmp_path) as there:

        async def told() -> dict[str, tuple[object, object, str]]:
            rows = (await here.http.get("/v1/models")).json()["data"]
            return {
                row["id"]: (row.get("context_length"), row.get("max_model_len"), row["owned_by"])
                for row in rows
            }

        async with there.worker2(["m", "n"], name="a", modelInfo={"m": long, "not offered": long}):

            async def seen() -> bool:
                return await told() == {"m": (32_768, 32_768, "vllm"), "n": (None, None, "fairlane")}

            await until(seen)
            async with here.worker2(["m"], name="b", instance="b", modelInfo={"m": short}) as worker:
                assert (await told())["m"] == (8192, 8192, "vllm")
                assert (await here.http.get("/v1/models/m")).json()["context_length"] == 8192
                again = {"instanceId": "b", "name": "b", "models": ["m"]}
                await worker.send("register", **again, modelInfo={"m": long})
                await until(seen)
                await worker.send("register", **again, modelInfo={"m": {"contextLength": 0}})
                assert "modelInfo" in (await worker.expect("error"))["message"]


async def test_a_callers_request_id_is_taken_over(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as talk, talk.worker() as worker:
        mine = {"X-Request-Id": "trace-7"}
        call = talk.later(talk.http.post("/api/openai", json={}, headers=mine))
        task = await worker.take()
        await worker.answer(task, None, error="It fell over")
        assert (await call).headers["x-request-id"] == "trace-7"
        shown = (await talk.http.get(f"/api/admin/tasks/{task['taskId']}")).json()
        assert shown["requestId"] == "trace-7"
        for odd in (b"", b"a b", b"x" * 129, b"\xff", b"a\tb"):
            answer = await talk.http.get("/api/me", headers={"X-Request-Id": odd})
            assert answer.headers["x-request-id"].startswith("req_")

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(Submit, "__call__", broken)
        with capture_logs() as lines:
            assert (
                await talk.http.post("/api/openai", json={"async": True}, headers=mine)
            ).status_code == 500
        assert [line["request_id"] for line in lines if line["event"] == "a call failed"] == ["trace-7"]


async def test_the_line_of_an_answer_that_broke_off_names_its_request(
    gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Request, status: int, *_: object) -> None:
        await self.start(status, [(b"content-length", b"99")])
        raise RuntimeError("a bug")

    async with gateway() as talk, talk.worker():
        monkeypatch.setattr(Request, "respond", broken)
        with capture_logs() as lines, pytest.raises(httpx2.RemoteProtocolError):
            await talk.http.post("/api/openai", json={"async": True}, headers={"X-Request-Id": "trace-8"})
        monkeypatch.undo()
        (line,) = [line for line in lines if line["event"] == "an answer broke off"]
        assert (line["path"], line["request_id"]) == ("/api/openai", "trace-8")
        assert isinstance(line["exc_info"].__cause__, RuntimeError)


async def test_answers_of_v1_say_how_long_they_took(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        body = {"model": "m", "messages": []}
        for more in ({}, {"stream": True}):
            call = talk.later(talk.http.post(CHAT, json={**body, **more}))
            await worker.answer(await worker.take(), "Hello")
            assert int((await call).headers["openai-processing-ms"]) >= 0
        for answer in (await talk.http.get("/v1/models"), await talk.http.post(CHAT, json={})):
            assert int(answer.headers["openai-processing-ms"]) >= 0


async def test_a_slash_at_the_end_changes_nothing(gateway: Start) -> None:
    async with gateway(models={"m": {}}) as talk, talk.worker():
        submitted = await talk.submit()
        for path in ("/v1/models", "/readyz", f"/api/task/{submitted}", "/api/admin/overview", "/dashboard"):
            bare, slashed = await talk.http.get(path), await talk.http.get(path + "/")
            assert (bare.status_code, slashed.status_code) == (200, 200), path
            assert bare.headers["content-type"] == slashed.headers["content-type"]
        assert (await talk.http.post(CHAT + "/", json={})).json()["error"]["param"] == "messages"
        assert (await talk.http.get(CHAT + "/")).status_code == 405
        assert (await talk.http.get("/nothing/")).status_code == 404


async def test_without_a_content_type_the_answer_says_what_to_send(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        for path in (CHAT, "/api/openai", "/api/tasks"):
            answer = await talk.http.post(path, content=b"{}")
            assert answer.status_code == 415
            assert "Send JSON with the header Content-Type: application/json" in answer.text


async def test_what_is_not_here_is_named_with_what_is(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        async with openai.DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS) as http:
            sdk = openai.AsyncOpenAI(
                base_url=f"{talk.served.url}/v1", api_key="none", http_client=http, max_retries=0
            )
            with pytest.raises(openai.NotFoundError) as caught:
                await sdk.get("/responses/resp_1/what", cast_to=object)
            assert (
                "does not offer this part of the Responses API. Of OpenAI's calls there are /v1/chat/compl"
                in caught.value.message
            )
            with pytest.raises(openai.NotFoundError, match="does not offer vector stores"):
                await sdk.vector_stores.retrieve("vs_1")
            with pytest.raises(openai.NotFoundError, match="does not offer this part of the Responses API"):
                await sdk.responses.input_tokens.count(model="m", input="Hello")
            with pytest.raises(openai.NotFoundError, match="does not offer this part of the Responses API"):
                await sdk.responses.compact(model="m", input="Hello")
            with pytest.raises(openai.APIStatusError, match="are not kept here, whatever their `store`"):
                await sdk.chat.completions.list()
            with pytest.raises(openai.NotFoundError, match="does not offer kept chat completions"):
                await sdk.chat.completions.retrieve("chatcmpl-1")
        assert "does not offer" not in (await talk.http.get("/v1/what")).text
        assert (await talk.http.get("/v1")).json()["error"]["code"] == "NOT_FOUND"
        assert "/v1/models" in (await talk.http.get("/v1/what")).json()["error"]["message"]
        assert "/docs" in (await talk.http.get("/api/what")).json()["error"]
