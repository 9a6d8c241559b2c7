"""openai-python, sync and async: refusals and failures as the right exceptions, retries as the headers say."""

import logging
import re
from typing import Any

import openai
import pytest

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.settings import CallerKey

from .openais import Sdk, python_sdk
from .stage import MESSAGES, MakeStage, Stage

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"
RETRYING = re.compile(r"Retrying request in ([\d.]+) seconds")


def delays(caplog: pytest.LogCaptureFixture) -> list[float]:
    """How long the SDK waited before each retry, in seconds, as its log says."""
    found = (RETRYING.search(record.getMessage()) for record in caplog.records)
    return [float(match[1]) for match in found if match]


async def test_a_wrong_key_is_an_authentication_error(shared_stage: MakeStage, kind: str) -> None:
    key = CallerKey(id="team", sha256=digest("right"))
    async with shared_stage(keys=[key], key="right") as stage:
        async with python_sdk(kind, stage.base_url, api_key="wrong", max_retries=2) as sdk:
            with pytest.raises(openai.AuthenticationError) as caught:
                await sdk.call(CHAT, model="talk", messages=MESSAGES)
            assert (caught.value.type, caught.value.code) == ("authentication_error", "invalid_api_key")
            assert caught.value.request_id
            with pytest.raises(openai.AuthenticationError):
                await sdk.chunks(CHAT, model="talk", messages=MESSAGES)
            with pytest.raises(openai.AuthenticationError):
                await sdk.call("models.list")
            assert sdk.statuses == [401, 401, 401]
        async with python_sdk(kind, stage.base_url, api_key="right") as sdk:
            completion = await sdk.call(CHAT, model="talk", messages=MESSAGES)
            assert completion.choices[0].message.content == "Hello wörld"


@pytest.mark.parametrize("ending", ["", "/v1/v1", "/openai"])
async def test_a_wrong_base_url_is_told_in_the_exception(stage: Stage, kind: str, ending: str) -> None:
    async with python_sdk(kind, stage.base_url.removesuffix("/v1") + ending) as sdk:
        for call, path in ((CHAT, "/chat/completions"), ("models.list", "/models")):
            with pytest.raises(openai.NotFoundError) as caught:
                await sdk.call(call, **({"model": "talk", "messages": MESSAGES} if call == CHAT else {}))
            assert f"{ending}{path}. The call is /v1{path}: the client's base URL must be" in str(
                caught.value
            )


async def test_an_unknown_model_is_not_found_and_not_retried(sdk: Sdk) -> None:
    for call in (sdk.call, sdk.chunks):
        with pytest.raises(openai.NotFoundError, match="nobody-has-this") as caught:
            await call(CHAT, model="nobody-has-this", messages=MESSAGES)
        assert caught.value.code == "model_not_found"
        assert caught.value.type == "invalid_request_error"
        assert caught.value.param == "model"
    assert sdk.statuses == [404, 404]


@pytest.mark.parametrize(
    ("path", "arguments", "param"),
    [
        (CHAT, {"model": "talk", "messages": "hi"}, "messages"),
        (CHAT, {"model": "talk", "messages": MESSAGES, "stream": "yes"}, "stream"),
        (CHAT, {"model": 7, "messages": MESSAGES}, "model"),
        (
            "embeddings.create",
            {"model": "vectors", "input": "a", "encoding_format": "hex"},
            "encoding_format",
        ),
    ],
)
async def test_a_mistake_is_a_bad_request(sdk: Sdk, path: str, arguments: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.call(path, **arguments)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param == param
    assert set(caught.value.body) == {"message", "type", "param", "code", "docs_url"}  # type: ignore[call-overload]


async def test_a_handler_that_raises_is_an_internal_server_error_tried_once(kind: str, stage: Stage) -> None:
    async with python_sdk(kind, stage.base_url, max_retries=2) as sdk:
        with pytest.raises(openai.InternalServerError) as caught:
            await sdk.call(CHAT, model="crash", messages=MESSAGES)
        assert caught.value.status_code == 500
        assert caught.value.code == "WORKER_ERROR"
        assert sdk.statuses == [500]
        assert len(stage.cast.seen) == 1


async def test_a_time_out_is_not_tried_again(shared_stage: MakeStage, kind: str) -> None:
    async with shared_stage(max_task_timeout_ms=300, min_task_timeout_ms=1) as stage:
        async with python_sdk(kind, stage.base_url, max_retries=2) as sdk:
            with pytest.raises(openai.InternalServerError) as caught:
                await sdk.call(CHAT, model="patient", messages=MESSAGES)
        assert caught.value.status_code == 504
        assert caught.value.code == "TOTAL_TIMEOUT"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert sdk.statuses == [504]
        assert len(stage.cast.seen) == 1


async def test_a_stream_whose_time_is_over_raises(shared_stage: MakeStage, kind: str) -> None:
    async with (
        shared_stage(max_task_timeout_ms=300, min_task_timeout_ms=1) as stage,
        python_sdk(kind, stage.base_url, max_retries=2) as sdk,
    ):
        with pytest.raises(openai.InternalServerError) as before:
            await sdk.chunks(CHAT, model="patient", messages=MESSAGES)
        assert before.value.status_code == 504
        assert sdk.statuses == [504]
        with pytest.raises(openai.APIError) as midway:
            await sdk.chunks(CHAT, model="endless", messages=MESSAGES)
        assert midway.value.code == "TOTAL_TIMEOUT"
        assert sdk.statuses == [504, 200]


async def test_the_sdks_retry_gets_in_once_the_queue_has_room(
    shared_stage: MakeStage, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "openai._base_client")
    async with shared_stage(slots=1, max_queue_length=1) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
        stage.beside(stage.fill())
        await stage.queued(1)

        async with python_sdk(kind, stage.base_url) as sdk:
            for call in (sdk.call, sdk.chunks):
                with pytest.raises(openai.InternalServerError, match="Queue is full") as caught:
                    await call(CHAT, model="talk", messages=MESSAGES)
                assert (caught.value.status_code, caught.value.code) == (503, "QUEUE_FULL")
                assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60

        def free_the_queue(status: int) -> None:
            if status == 503:
                stage.cast.release.set()

        async with python_sdk(kind, stage.base_url, free_the_queue, max_retries=5) as sdk:
            completion = await sdk.call(CHAT, model="talk", messages=MESSAGES)
        assert completion.choices[0].message.content == "Hello wörld"
        assert sdk.statuses[0] == 503
        assert sdk.statuses[-1] == 200
        waited = delays(caplog)
        assert waited == [1.0] * (len(sdk.statuses) - 1)  # retry-after-ms, not the SDK's own 0.5 s


async def test_no_worker_for_a_configured_model_is_worth_a_retry(shared_stage: MakeStage, kind: str) -> None:
    async with shared_stage(models={"soon": {}}) as stage, python_sdk(kind, stage.base_url) as sdk:
        assert "soon" in [model.id for model in (await sdk.call("models.list")).data]
        with pytest.raises(openai.InternalServerError, match="No worker available") as caught:
            await sdk.call(CHAT, model="soon", messages=MESSAGES)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "10"  # nobody has seen a worker of it
        assert caught.value.param == "model"


async def test_the_clients_own_time_out_stops_the_worker(stage: Stage, kind: str) -> None:
    async with python_sdk(kind, stage.base_url, timeout=0.5) as sdk:
        for _ in range(10):
            with pytest.raises(openai.APITimeoutError):
                await sdk.call(CHAT, model="endless", messages=MESSAGES)
            if stage.cast.begun.is_set():  # else the machine was so slow that the call never got there
                break
    await stage.reached(stage.cast.cancelled, "the cancel at the worker")
