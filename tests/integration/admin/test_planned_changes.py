"""Changes of settings as objects: rolled out over all replicas, compared, scheduled, kept, taken back."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.records.comparison import Comparisons
from fairlane.gateway.settings import Settings

from .operating import audit, row
from .test_commands import fairlane

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHANGES = "/api/admin/changes"
ROUTES: dict[str, Any] = {"routes": {"chat": {"model": "a"}}, "models": {"a": {"concurrency": 9}}}


async def make(talk: Talk, body: Mapping[str, Any], *, query: str = "", status: int = 201) -> dict[str, Any]:
    """Make a change; the answer."""
    answer = await talk.http.post(CHANGES + query, json=body)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def shown(talk: Talk, change: Mapping[str, Any]) -> dict[str, Any]:
    answer = await talk.http.get(f"{CHANGES}/{change['id']}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def act(talk: Talk, change: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Keep a change, or take it back."""
    answer = await talk.http.post(f"{CHANGES}/{change['id']}/{what}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def knows(talk: Talk, change: Mapping[str, Any], state: str = "active") -> None:
    """Return when a replica goes by what a change is now."""
    current = talk.served.gateway.current

    def does() -> bool:
        active = current.rollouts.by_name.values() if current.rollouts is not None else ()
        return any(one.change.id == change["id"] for one in active) is (state == "active")

    await until(does, f"the replica to know the change as {state}")


async def serve(worker: RawWorker, fails: float = 0.0) -> None:
    """Answer all tasks that come, some with a failure."""
    for number in range(100_000):
        task = await worker.take()
        if fails and number % round(1 / fails) == 0:
            await worker.answer(task, error="no")
        else:
            usage = {"inputTokens": 10, "outputTokens": 5}
            await worker.answer(task, {"content": "fine"}, usage=usage)


async def detail(talk: Talk, task_id: str) -> dict[str, Any]:
    answer = await talk.http.get(f"/api/admin/tasks/{task_id}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def ran(talk: Talk, number: int, **body: Any) -> list[dict[str, Any]]:
    """What is known of so many async tasks of the route `chat`, all of which have ended."""
    ids = await asyncio.gather(*(talk.submit(**{"model": "chat", **body}) for _ in range(number)))
    for task_id in ids:
        await talk.reaches(task_id, "completed", "failed")
    return [await detail(talk, task_id) for task_id in ids]


async def test_a_share_of_tasks_moves_on_all_replicas_and_records_agree(gateway: Start) -> None:
    async with (
        gateway(**ROUTES) as here,
        gateway(**ROUTES) as there,
        there.worker2(["a"], slots=8) as old,
        there.worker2(["b"], slots=8) as new,
    ):
        there.later(serve(old, fails=0.1))
        there.later(serve(new))
        change = await make(here, {"route": "chat", "set": {"model": "b"}, "rollout": 50, "note": "try"})
        assert (change["state"], change["rollout"], change["by"], change["warnings"]) == (
            *("active", 50, "task"),
            [
                "routes.chat leads to b, which neither models nor upstreams name: a worker has to offer it by this very name"
            ],
        )
        await knows(there, change)
        tasks = [*await ran(here, 100), *await ran(there, 100)]
        by_model = Counter(task["model"] for task in tasks)
        assert by_model.keys() == {"a", "b"}
        assert 60 <= by_model["b"] <= 140
        for task in tasks:
            assert task["change"] == {"id": change["id"], "side": "new" if task["model"] == "b" else "old"}

        told: dict[str, Any] = {}

        async def recorded() -> bool:
            told.update(await shown(there, change))
            compared = told["comparison"]
            return bool(compared["old"]["tasks"] + compared["new"]["tasks"] == 200)

        await until(recorded, "all tasks to be recorded")
        compared = told["comparison"]
        for side, model in (("old", "a"), ("new", "b")):
            half, mine = compared[side], [task for task in tasks if task["model"] == model]
            states = Counter(task["status"] for task in mine)
            assert half["tasks"] == len(mine) == half["sampled"]
            assert (half["completed"], half["failed"]) == (states["completed"], states["failed"])
            assert half["cancelled"] == half["moved"] == 0
            assert sum(failure["tasks"] for failure in half["failures"]) == half["failed"]
            assert half["waitMs"]["p50"] <= half["waitMs"]["p95"] <= half["durationMs"]["p95"]
        assert compared["new"]["inputTokensPerTask"] == 10
        assert compared["old"]["failed"] > 0 == compared["new"]["failed"]
        assert compared["enough"]
        rows = (await here.http.get("/api/admin/usage/tasks?limit=200")).json()["tasks"]
        sides = {row["taskId"]: (row["changeId"], row["side"], row["moves"]) for row in rows}
        assert sides == {task["taskId"]: (change["id"], task["change"]["side"], 0) for task in tasks}

        assert (await act(there, change, "take-back"))["state"] == "taken_back"
        await knows(here, change, "taken_back")
        after = [*await ran(here, 10), *await ran(there, 10)]
        assert {(task["model"], task["change"]) for task in after} == {("a", None)}
        assert (await shown(here, change))["comparison"] == compared


async def test_who_comes_again_with_his_key_stays_on_his_side(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk, talk.worker2(["a", "b"], slots=8) as worker:
        talk.later(serve(worker))
        await make(talk, {"route": "chat", "set": {"model": "b", "max_output_tokens": 10}, "rollout": 50})
        body = {"model": "chat", "messages": [], "max_tokens": 100}
        outcomes = []
        for number in range(24):
            headers = {"Idempotency-Key": f"key-{number}"}
            first = await talk.http.post("/v1/chat/completions", json=body, headers=headers)
            again = await talk.http.post("/v1/chat/completions", json=body, headers=headers)
            assert (first.status_code, first.json().get("id")) == (again.status_code, again.json().get("id"))
            outcomes.append(first.status_code)
        assert set(outcomes) == {200, 400}  # more output than the new side allows


async def test_the_same_task_stays_the_same_under_a_share(gateway: Start) -> None:
    settings: dict[str, Any] = {
        "routes": {"sum": {"model": "a", "same_task_ms": 60_000}},
        "templates": {
            "sum": {"messages": [{"role": "user", "content": "Sum {{ x }}"}]},
            "other": {"messages": [{"role": "user", "content": "Add {{ x }}"}]},
        },
    }
    async with gateway(**settings) as talk, talk.worker2(["a", "b"], slots=8) as worker:
        talk.later(serve(worker))
        await make(talk, {"route": "sum", "set": {"model": "b", "template": "other"}, "rollout": 50})
        body = {"template": "sum", "variables": {"x": 1}, "async": True}
        ids = set()
        for _ in range(8):
            answer = await talk.http.post("/api/tasks", json=body)
            assert answer.status_code == 202, answer.text
            ids.add(answer.json()["taskId"])
        assert len(ids) == 1


async def test_model_and_template_of_a_route_change_together(gateway: Start) -> None:
    settings: dict[str, Any] = {
        "routes": {"sum": {"model": "a"}},
        "templates": {
            name: {"messages": [{"role": "user", "content": text}]}
            for name, text in (("sum", "Sum"), ("other", "Add"))
        },
    }
    async with gateway(**settings) as talk, talk.worker2(["a", "b"], slots=8) as worker:
        change = await make(talk, {"route": "sum", "set": {"model": "b", "template": "other"}, "rollout": 50})
        seen = set()
        for _ in range(30):
            answer = await talk.http.post("/api/tasks", json={"template": "sum", "async": True})
            task = await worker.take()
            told = await detail(talk, answer.json()["taskId"])
            seen.add((task["model"], task["payload"]["messages"][0]["content"], told["change"]["side"]))
            await worker.answer(task, {"content": "fine"})
        assert seen == {("a", "Sum", "old"), ("b", "Add", "new")}
        listed = (await talk.http.get("/api/routes")).json()["routes"]
        assert [route["model"] for route in listed] == ["a"]
        kept = await act(talk, change, "keep")
        assert (kept["rollout"], kept["until"], kept["state"]) == (100, None, "active")
        listed = (await talk.http.get("/api/routes")).json()["routes"]
        assert [(route["model"], route["template"]) for route in listed] == [("b", "other")]


async def test_a_wider_share_keeps_who_was_in_it(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk, talk.worker2(["a", "b"], slots=8) as worker:
        talk.later(serve(worker))
        body = {"route": "chat", "set": {"model": "b"}, "rollout": 30, "by": "user"}
        change = await make(talk, body)

        async def on_new_side() -> set[str]:
            found = set()
            for number in range(30):
                headers = {"X-Fairlane-User": f"user-{number}"}
                answer = await talk.http.post(
                    "/v1/chat/completions", json={"model": "chat", "messages": []}, headers=headers
                )
                if answer.headers["x-fairlane-model"] == "b":
                    found.add(f"user-{number}")
            return found

        few = await on_new_side()
        answer = await talk.http.patch(f"{CHANGES}/{change['id']}", json={"rollout": 70})
        assert answer.status_code == 200
        more = await on_new_side()
        assert few < more
        assert len(more) < 30


async def test_whoever_moves_a_route_to_its_only_fallback_is_told(gateway: Start) -> None:
    routes = {"chat": {"model": "a", "fallbacks": ["b"]}}
    async with gateway(routes=routes, models={"a": {}, "b": {}}) as talk:
        moves = {"route": "chat", "set": {"model": "b"}, "rollout": 10}
        said = (await make(talk, moves, query="?check=true", status=200))["warnings"]
        assert said == [
            "tasks of chat on b have no other model to go on to: it is their only fallback. Say fallbacks, too"
        ]
        moves["set"] = {"model": "b", "fallbacks": ["a"]}
        assert (await make(talk, moves, query="?check=true", status=200))["warnings"] == []


async def test_the_log_says_on_which_side_somebody_was_refused(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk:
        change = await make(talk, {"route": "chat", "set": {"model": "b"}})
        await knows(talk, change)
        with capture_logs() as lines:
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
            assert (await talk.http.post("/v1/chat/completions", json=body)).status_code == 503
        (line,) = [line for line in lines if line["event"] == "call refused"]
        assert line["change"] == f"{change['id']} new"


async def test_a_change_holds_after_restarts_and_on_top_of_a_new_file(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk:
        change = await make(talk, {"route": "chat", "set": {"model": "b"}})
    async with gateway(**ROUTES) as talk, talk.worker2(["a", "b", "c"], slots=8) as worker:
        talk.later(serve(worker))
        [task] = await ran(talk, 1)  # the first one that it gets
        assert (task["model"], task["change"]) == ("b", {"id": change["id"], "side": "new"})
        running = talk.served.gateway
        file = running.current.settings.model_dump() | {"routes": {"chat": {"model": "c", "mode": "batch"}}}
        await running.reconfigure(Settings.model_validate(file))
        [task] = await ran(talk, 1)
        assert (task["model"], task["queue"]) == ("b", "free_batch")
        await running.reconfigure(Settings.model_validate(file | {"routes": {}}))
        assert "there is no route 'chat'" in (await shown(talk, change))["problem"]
        await running.reconfigure(Settings.model_validate(file))
        assert (await shown(talk, change))["problem"] is None
        await act(talk, change, "take-back")
        [task] = await ran(talk, 1)
        assert (task["model"], task["change"]) == ("c", None)


async def test_what_is_scheduled_begins_and_ends_by_itself_on_all_replicas(here: Talk, there: Talk) -> None:
    now = (await here.http.get(CHANGES)).json()["now"]
    body = {"model": "m", "set": {"concurrency": 3}, "at": now + 500, "until": now + 2500}
    change = await make(here, body)
    assert (change["state"], change["perTask"], change["rollout"]) == ("scheduled", False, None)

    async def state() -> str:
        return str((await shown(there, change))["state"])

    async def active() -> bool:
        return await state() == "active"

    async def ended() -> bool:
        return await state() == "ended"

    await until(active, "it to begin")
    assert (await row(there, "model", "m"))["limit"] == 3
    await until(ended, "it to end")
    assert (await here.http.patch("/api/admin/models/m", json={})).json()["values"]["concurrency"] is None
    entries = [
        entry for entry in (await audit(here))["entries"] if entry["target"] == f"change {change['id']}"
    ]
    assert [entry["action"] for entry in reversed(entries)] == ["create", "begin", "end"]
    assert (await shown(here, change))["comparison"] is None


async def test_a_models_limits_can_be_changed_for_its_tasks(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"], slots=2) as worker:
        await make(talk, {"model": "m", "set": {"first_output_ms": 50}})
        task_id = await talk.submit(model="m")
        await worker.take()
        told = await talk.reaches(task_id, "failed")
        assert told["code"] == "FIRST_TOKEN_TIMEOUT"
        assert (await detail(talk, task_id))["change"]["side"] == "new"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"route": "chat", "model": "m", "set": {"model": "b"}}, "exactly one of route, model and queue"),
        ({"set": {"model": "b"}}, "exactly one of route, model and queue"),
        ({"route": "chat"}, "set Field required"),
        ({"route": "chat", "set": {}}, "set Dictionary should have at least 1 item"),
        ({"route": "chat", "set": {"price": {"input": 1}}}, "'price' is nothing of a route"),
        ({"route": "chat", "set": {"modl": "b"}}, "did you mean model?"),
        ({"route": "chat", "set": {"model": 7}}, "model should be a valid string"),
        ({"route": "nowhere", "set": {"model": "b"}}, "there is no route 'nowhere'; there are: chat"),
        (
            {"route": "chat", "set": {"model": "b"}, "rollout": 0},
            "rollout should be greater than or equal to 1",
        ),
        ({"route": "chat", "set": {"model": "b"}, "until": 5}, "until must be later than now"),
        ({"route": "chat", "set": {"model": "b"}, "by": "weather"}, "by should be 'task' or 'user'"),
        ({"model": "m", "set": {"concurrency": 3}, "rollout": 10}, "a share of its tasks has no meaning"),
        ({"queue": "free_batch", "set": {"weight": 3}, "rollout": 100}, "holds for the queue as a whole"),
        ({"model": "m", "set": {"concurrency": 3, "fallbacks": ["b"]}}, "make two changes"),
        ({"model": "m", "set": {"concurrency": 3}, "tier": "paid"}, "said of a route's tasks"),
        ({"model": "m", "set": {"concurrency": "x"}}, "concurrency should be a valid integer"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(
    shared_gateway: Start, body: dict[str, Any], why: str
) -> None:
    async with shared_gateway(**ROUTES) as talk:
        told = await make(talk, body, status=400)
        assert why in told["error"]
        assert (await talk.http.get(CHANGES)).json()["changes"] == []


async def test_a_route_has_one_change_and_what_is_over_or_unknown_is_told(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk:
        body = {"route": "chat", "set": {"model": "b"}, "rollout": 10}
        await make(talk, body, query="?check=true", status=200)
        assert (await talk.http.get(CHANGES)).json()["changes"] == []
        change = await make(talk, body)
        told = await make(talk, body, query="?check=true", status=409)
        assert told["code"] == "CHANGE_CONFLICT"
        assert change["id"] in told["error"]
        await make(talk, {**body, "set": {"mode": "batch"}}, status=409)
        await act(talk, change, "take-back")
        await act(talk, change, "take-back")
        answer = await talk.http.patch(f"{CHANGES}/{change['id']}", json={"rollout": 20})
        assert (answer.status_code, answer.json()["code"]) == (409, "CHANGE_OVER")
        for method, path in (("GET", ""), ("POST", "/keep"), ("POST", "/take-back"), ("PATCH", "")):
            said = {"rollout": 5} if method == "PATCH" else None
            answer = await talk.http.request(method, f"{CHANGES}/c0{path}", json=said)
            assert (answer.status_code, answer.json()["code"]) == (404, "CHANGE_NOT_FOUND")
        whole = await make(talk, {"model": "m", "set": {"concurrency": 3}})
        answer = await talk.http.patch(f"{CHANGES}/{whole['id']}", json={"rollout": 20})
        assert "a share of its tasks has no meaning" in answer.json()["error"]
        answer = await talk.http.patch(f"{CHANGES}/{whole['id']}", json={})
        assert answer.status_code == 400


async def test_a_change_can_be_seen_and_taken_back_while_the_database_is_away(
    gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise DatabaseUnavailable("nobody answers there")

    async with gateway(**ROUTES) as talk:
        change = await make(talk, {"route": "chat", "set": {"model": "b"}, "rollout": 10})
        monkeypatch.setattr(Comparisons, "of", away)
        told = await shown(talk, change)
        assert (told["state"], told["comparison"], told["databaseAway"]) == (
            *("active", None, "nobody answers there"),
        )
        assert (await act(talk, change, "take-back"))["state"] == "taken_back"


async def test_a_viewer_sees_changes_and_makes_none(gateway: Start) -> None:
    keys = [key("ops", admin=True), key("eye", scopes=["viewer"]), key("app")]
    async with gateway(keys=keys, **ROUTES) as talk:
        talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
        body = {"route": "chat", "set": {"model": "b"}}
        change = await make(talk, body)
        assert change["who"] == "ops"
        path = f"{CHANGES}/{change['id']}"
        for name, looks in (("eye", 200), ("app", 403)):
            async with talk.client(secret(name)) as other:
                for read in (CHANGES, path):
                    assert (await other.get(read)).status_code == looks
                assert (await other.post(CHANGES, json=body)).status_code == 403
                assert (await other.patch(path, json={"rollout": 3})).status_code == 403
                for word in ("keep", "take-back"):
                    assert (await other.post(f"{path}/{word}")).status_code == 403


@pytest.mark.slow
async def test_the_commands_make_compare_and_take_back(gateway: Start) -> None:
    async with gateway(**ROUTES) as talk, talk.worker2(["a", "b"], slots=4) as worker:
        talk.later(serve(worker))
        done = await fairlane(talk, "changes")
        assert done.stdout == "there are no changes\n"
        values = ("model=b", "fallbacks=a,c", "--rollout", "50", "--by", "user", "--until", "2d")
        done = await fairlane(talk, "changes", "make", "route", "chat", *values, "--check")
        assert done.stdout.startswith("it can be made so; nothing was changed\n")
        assert "active" not in done.stdout
        assert "routes.chat leads to b, c" in done.stderr
        done = await fairlane(talk, "changes", "make", "route", "chat", *values, "--note", "try")
        assert done.returncode == 0, done.stderr
        [change] = (await talk.http.get(CHANGES)).json()["changes"]
        assert (change["set"], change["rollout"], change["by"], change["note"]) == (
            *({"model": "b", "fallbacks": ["a", "c"]}, 50, "user", "try"),
        )
        assert abs(change["until"] - time.time() * 1000 - 2 * 86_400_000) < 60_000
        await ran(talk, 3)
        for arguments, expected in (
            (("share", change["id"], "80"), "80 % of users"),
            (("until", change["id"], "null"), "-"),
            (("keep", change["id"]), "100 % of users"),
            (("show", change["id"]), "too few tasks and refused calls yet"),
            (("take-back", change["id"]), "taken back"),
            (("list",), "taken back"),
        ):
            done = await fairlane(talk, "changes", *arguments)
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout + done.stderr
        done = await fairlane(talk, "changes", "keep", change["id"])
        assert (done.returncode, done.stdout) == (2, "")
        assert "has been taken back: make it anew" in done.stderr
        done = await fairlane(talk, "changes", "make", "tier", "x", "a=b")
        assert "say route, model or queue" in done.stderr
        done = await fairlane(talk, "changes", "make", "route", "chat", "model=b", "--rollout", "0")
        assert done.returncode == 2
        assert len((await talk.http.get(CHANGES)).json()["changes"]) == 1
        done = await fairlane(talk, "changes", "make", "route", "chat", "model=b", "--at", "tomorrow")
        assert "or a date or time such as 2027-01-31 or 2027-01-31T22:00 (UTC); got 'tomorrow'" in done.stderr
