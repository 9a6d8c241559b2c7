"""Overrides over HTTP and by the commands: gradual on all replicas, promoted, rolled back."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.gateway.settings import Settings

from .operating import audit, row
from .test_commands import fairlane

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
OVERRIDES = "/api/admin/overrides"
ROUTES: dict[str, Any] = {"routes": {"chat": {"model": "a"}}, "models": {"a": {"concurrency": 9}}}
TRIAL: dict[str, Any] = {"target": "route", "name": "chat", "values": {"model": "b"}, "percent": 50}


async def create(
    talk: Talk, body: Mapping[str, Any], *, query: str = "", status: int = 201
) -> dict[str, Any]:
    """Create an override; the answer."""
    answer = await talk.http.post(OVERRIDES + query, json=body)
    assert answer.status_code == status, answer.text
    created: dict[str, Any] = answer.json()
    return created


async def act(talk: Talk, override: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Set the status of an override: `promoted` or `rolled_back`."""
    answer = await talk.http.patch(f"{OVERRIDES}/{override['id']}", json={"status": what})
    assert answer.status_code == 200, answer.text
    done: dict[str, Any] = answer.json()
    return done


async def listed(talk: Talk) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await talk.http.get(OVERRIDES)).json()["overrides"]
    return found


async def serve(worker: RawWorker) -> None:
    """Complete all tasks that arrive."""
    while True:
        await worker.answer(await worker.take(), {"content": "fine"})


async def models(talk: Talk, number: int) -> Counter[str]:
    """The models that ran so many tasks of the route `chat`."""
    ids = await asyncio.gather(*(talk.submit(model="chat") for _ in range(number)))
    ran: Counter[str] = Counter()
    for task_id in ids:
        await talk.reaches(task_id, "completed")
        ran[(await talk.http.get(f"/api/admin/tasks/{task_id}")).json()["model"]] += 1
    return ran


async def test_a_share_takes_effect_step_by_step_on_all_replicas(gateway: Start) -> None:
    async with (
        gateway(**ROUTES) as here,
        gateway(**ROUTES) as there,
        there.worker2(["a", "b"], slots=8) as worker,
    ):
        there.later(serve(worker))

        def known(percent: int | None) -> Callable[[], bool]:
            def does() -> bool:
                share = there.served.gateway.current.overlay.shares.get("chat")
                return (share and share.override.percent) == percent

            return does

        override = await create(here, TRIAL)
        assert (override["status"], override["percent"], override["until"]) == ("active", 50, None)
        assert override["warnings"] == [
            "routes.chat leads to b, which neither models nor upstreams list: a worker has to serve it by this very name"
        ]
        await until(known(50), "the other replica to apply the override")
        for talk in (here, there):
            ran = await models(talk, 60)
            assert 10 <= ran["b"] <= 50
            assert ran.total() == 60
        answer = await here.http.patch(f"{OVERRIDES}/{override['id']}", json={"percent": 99})
        assert answer.json()["percent"] == 99
        await until(known(99), "the other replica to apply the larger share")
        assert (await models(there, 60))["b"] > 50
        promoted = await act(here, override, "promoted")
        assert (promoted["status"], promoted["percent"]) == ("promoted", 100)
        await until(known(None), "the other replica to apply it to all tasks")
        assert await models(there, 20) == {"b": 20}
        await act(there, override, "rolled_back")
        assert await models(there, 20) == {"a": 20}
        assert (await listed(here), await listed(there)) == ([], [])
        actions = [entry["action"] for entry in (await audit(here))["entries"]]
        assert actions == ["rollback", "promote", "update", "create"]


async def test_limits_of_models_and_queues_end_by_themselves_and_a_reload_leaves_them(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk:
        until_ms = int(time.time() * 1000) + 1500
        body = {"target": "model", "name": "a", "values": {"concurrency": 2, "first_output": "70ms"}}
        await create(talk, {**body, "until": until_ms})
        await create(talk, {"target": "queue", "name": "free_batch", "values": {"paused": True}})
        current = talk.served.gateway.current
        await talk.served.gateway.reconfigure(
            Settings.model_validate({**current.settings.model_dump(), "models": {"a": {"concurrency": 5}}})
        )
        assert (await row(talk, "model", "a"))["limit"] == 2
        assert current.overlay.settings.models["a"].first_output_ms == 70

        async def ended() -> bool:
            return [one["target"] for one in await listed(talk)] == ["queue"]

        await until(ended, "the override to end")
        assert (await row(talk, "model", "a"))["limit"] == 5
        assert (await row(talk, "queue", "free_batch"))["paused"] is True


async def test_a_models_silence_limit_holds_for_its_tasks(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"], slots=2) as worker:
        await create(talk, {"target": "model", "name": "m", "values": {"first_output": "50ms"}})
        task_id = await talk.submit(model="m")
        await worker.take()
        assert (await talk.reaches(task_id, "failed"))["code"] == "FIRST_TOKEN_TIMEOUT"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"target": "tier"}, "target should be 'queue', 'model' or 'route'"),
        ({"values": {}}, "values Dictionary should have at least 1 item"),
        ({"values": {"price": {"input": 1}}}, "'price' of a route cannot be overridden"),
        ({"name": "nowhere"}, "there is no route 'nowhere'; there are: chat"),
        ({"percent": 0}, "percent should be greater than or equal to 1"),
        ({"until": 5}, "until must be in the future"),
        ({"target": "model", "values": {"concurrency": 3}}, "only an override of a route has a percent"),
        ({"target": "model", "values": {"concurrency": "x"}, "percent": None}, "a valid integer"),
        ({"target": "model", "values": {"concurrency": None}, "percent": 100}, "must have a value"),
        (
            {"target": "model", "values": {"colour": 1, "fallbacks": ["b"]}, "percent": 100},
            "no setting of a model",
        ),
    ],
)
async def test_an_invalid_override_is_rejected_with_a_sentence(
    shared_gateway: Start, body: dict[str, Any], why: str
) -> None:
    async with shared_gateway(**ROUTES) as talk:
        answer = await create(talk, {**TRIAL, **body}, status=400)
        assert why in answer["error"]
        assert await listed(talk) == []


async def test_conflicts_and_unknown_overrides(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk:
        await create(talk, TRIAL, query="?check=true", status=200)
        assert await listed(talk) == []
        override = await create(talk, TRIAL)
        told = await create(talk, {**TRIAL, "values": {"mode": "batch"}}, status=409)
        assert told["code"] == "OVERRIDE_CONFLICT"
        assert override["id"] in told["error"]
        await act(talk, override, "promoted")
        path = f"{OVERRIDES}/{override['id']}"
        answer = await talk.http.patch(path, json={"percent": 20})
        assert (answer.status_code, answer.json()["code"]) == (409, "OVERRIDE_PROMOTED")
        assert (await talk.http.patch(path, json={})).status_code == 400
        assert [one["status"] for one in await listed(talk)] == ["promoted"]
        for said in ({"status": "promoted"}, {"status": "rolled_back"}, {"percent": 5}):
            answer = await talk.http.patch(f"{OVERRIDES}/o0", json=said)
            assert (answer.status_code, answer.json()["code"]) == (404, "OVERRIDE_NOT_FOUND")


@pytest.mark.slow
async def test_the_commands(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk:
        values = ("model=b", "tiers.paid.fallbacks=a,c", "--percent", "50", "--until", "2d")
        done = await fairlane(talk, "override", "create", "route", "chat", *values)
        assert (done.returncode, "routes.chat leads to b, c" in done.stderr) == (0, True), done.stderr
        [override] = await listed(talk)
        assert (override["values"], override["percent"]) == (
            *({"model": "b", "tiers.paid.fallbacks": ["a", "c"]}, 50),
        )
        assert abs(override["until"] - time.time() * 1000 - 2 * 86_400_000) < 60_000
        for arguments in (
            ("update", override["id"], "--percent", "80", "--until", "null"),
            ("update", override["id"], "--status", "promoted"),
            ("list",),
            ("update", override["id"], "--status", "rolled_back"),
        ):
            done = await fairlane(talk, "override", *arguments)
            assert (done.returncode, override["id"] in done.stdout) == (0, True), done
        assert await listed(talk) == []
        for wrong in (("update", override["id"], "--status", "promoted"), ("create", "tier", "x", "a=b")):
            assert (await fairlane(talk, "override", *wrong)).returncode == 2
