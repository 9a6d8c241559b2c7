"""What the holder of a signed token can do, at one replica and at another, and what no more."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx2
import pytest
from tests.integration.keys.operating import (
    KEYS,
    OPS,
    Start,
    as_ops,
    bearer,
    becomes,
    change,
    create,
    revoke,
    rotate,
    told,
)
from tests.support.serving import until
from tests.support.signing import token
from tests.support.streams import events
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

SITE: dict[str, Any] = {"id": "site", "delegating": True, "signing": True, "tier": "paid"}


async def site(talk: Talk, **more: Any) -> str:
    """The secret of a key that signs."""
    return str((await create(as_ops(talk), **SITE | more))["secret"])


def holder(talk: Talk, text: str) -> httpx2.AsyncClient:
    return talk.client(text)


async def who(talk: Talk, text: str) -> httpx2.Response:
    return await talk.http.get("/api/me", headers=bearer(text))


async def error(answer: httpx2.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    said = answer.json()["error"]
    return str(said["message"] if isinstance(said, dict) else said)


async def test_a_page_submits_reads_and_cancels_with_a_token(gateway: Start) -> None:
    async with gateway(keys=OPS) as here, gateway(keys=OPS) as there, there.worker2(["m"], slots=2) as worker:
        text = token(await site(here), user="ann", tier="free", models=["m"], priority=2, max_tokens=50)
        await becomes(there, text, 200)
        async with holder(here, text) as ann, holder(there, text) as far:
            account = await told(await ann.get("/api/me"))
            assert (account["user"], account["tier"], account["tiers"]) == ("site/ann", "free", ["free"])
            assert (account["admin"], account["delegating"], account["scopes"]) == (False, False, ["call"])
            call = here.later(ann.post("/v1/chat/completions", json={"model": "m", "messages": []}))
            task = await worker.take()
            assert task["payload"] == {"model": "m", "messages": [], "max_tokens": 50}
            await worker.answer(task, "hello", lastSeq=0)
            assert (await call).json()["choices"][0]["message"]["content"] == "hello"
            made = await told(await ann.post("/api/openai", json={"async": True, "messages": []}), 202)
            task = await worker.take()
            assert task["model"] == task["payload"]["model"] == "m", "the only one that the token is for"
            await worker.answer(task, "later", lastSeq=0)
            path = f"/api/task/{made['taskId']}"

            async def done() -> bool:
                return (await far.get(path)).json()["status"] == "completed"

            await until(done, "the task to be completed")
            assert (await far.get(path)).json()["result"] == "later"
            events = (await ann.get(f"{path}/events")).text
            assert "event: done" in events
            assert (await far.get(made["streamUrl"], headers={"Authorization": ""})).text == events
            made = await told(await ann.post("/api/openai", json={"async": True, "messages": []}), 202)
            await worker.take()
            cancelled = await told(await far.post(f"/api/task/{made['taskId']}/cancel"))
            assert cancelled["status"] == "cancelled"
            listed = (await ann.get("/v1/models")).json()["data"]
            assert [row["id"] for row in listed] == ["m"]


async def test_a_holder_sees_the_tasks_of_its_user_or_of_its_token_alone(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk, talk.worker2(["m"]):
        key = await site(talk)
        texts = [token(key, user="ann"), token(key, user="bob"), token(key, jti="one"), token(key, jti="two")]
        ids = []
        for text in texts:
            async with holder(talk, text) as one:
                ids.append(
                    (await told(await one.post("/api/openai", json={"async": True, "model": "m"}), 202))[
                        "taskId"
                    ]
                )
        async with holder(talk, key) as back_end:
            ids.append(
                (await told(await back_end.post("/api/openai", json={"async": True, "model": "m"}), 202))[
                    "taskId"
                ]
            )
        for at, text in enumerate(texts):
            async with holder(talk, text) as one:
                seen = [(await one.get(f"/api/task/{task}")).status_code == 200 for task in ids]
                assert seen == [other == at for other in range(len(ids))]
                for task in ids[:at] + ids[at + 1 :]:
                    assert (await one.get(f"/api/task/{task}/events")).status_code == 404
                    assert (await one.post(f"/api/task/{task}/cancel")).status_code == 404
        async with holder(talk, token(key, user="ann", ends_s=60)) as again:
            assert (await again.get(f"/api/task/{ids[0]}")).status_code == 200, (
                "another token of the same user"
            )
        async with talk.client(key, **{"X-Fairlane-User": "ann"}) as back_end:
            assert (await back_end.get(f"/api/task/{ids[0]}")).status_code == 200, "as the back end may"


async def test_what_contradicts_the_token_is_refused_with_a_sentence(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk, talk.worker2(["m", "n"]) as worker:
        key = await site(talk, scopes=["admin"])
        text = token(
            *(key,),
            user="ann",
            models=["m"],
            priority=1,
            mode="batch",
            max_tokens=50,
            timeout=20_000,
            jti="a",
            uses=1,
        )
        async with holder(talk, text) as ann:
            chat = {"model": "m", "messages": []}
            for headers, body, sentence in (
                ({}, {"model": "n"}, "The token is for m, not for n"),
                ({"X-Fairlane-Priority": "5"}, {}, "The token fixes priority: it is 1"),
                ({"X-Fairlane-Mode": "stream"}, {}, "The token fixes mode: it is batch"),
                ({"X-Fairlane-Timeout": "30000"}, {}, "The token allows timeout 20000 at most"),
                ({"X-Fairlane-User": "bob"}, {}, "leave X-Fairlane-User out"),
                ({"X-Fairlane-Tier": "free"}, {}, "leave X-Fairlane-Tier out"),
                ({}, {"max_tokens": 51}, "The token allows 50 tokens of output"),
            ):
                answer = await ann.post("/v1/chat/completions", json=chat | body, headers=headers)
                assert sentence in await error(answer, 403)
                assert set(answer.json()["error"]) == {"message", "type", "param", "code", "docs_url"}
            for body, sentence in (
                ({"model": "n"}, "The token is for m, not for n"),
                ({"priority": 0}, "The token fixes priority"),
                ({"mode": "vision"}, "The token fixes mode"),
                ({"timeout": 20_001}, "The token allows timeout 20000 at most"),
                ({"n": 2, "max_tokens": 26}, "max_tokens may be 25 at most"),
            ):
                assert sentence in await error(await ann.post("/api/openai", json=body), 403)
            inner = {"type": "openaiLike", "model": "m", "payload": {"model": "n"}}
            assert "The token is for m" in await error(await ann.post("/api/tasks", json=inner), 403)
            inner = {"type": "openaiLike", "model": "m", "payload": {"max_tokens": 51}}
            assert "may be 50 at most" in await error(await ann.post("/api/tasks", json=inner), 403)
            for inner in ({"model": "m", "Model": "n"}, {"MODEL": "n"}):
                for path, body in (
                    ("/api/openai", inner),
                    ("/v1/chat/completions", {**chat, **inner}),
                    ("/api/tasks", {"type": "openaiLike", "payload": inner}),
                ):
                    assert (await ann.post(path, json=body)).status_code == 400, path
            for method, path in (
                *(("GET", "/api/admin/overview"), ("GET", KEYS), ("POST", KEYS), ("GET", "/metrics")),
                *(("GET", "/api/admin/usage"), ("GET", "/api/admin/events")),
            ):
                assert (await ann.request(method, path, json={})).status_code == 403, path
            call = talk.later(ann.post("/v1/chat/completions", json=chat))
            await worker.answer(await worker.take(), "hello", lastSeq=0)
            assert (await call).status_code == 200, "none of the refusals was a use"
            assert "no uses left" in await error(await ann.post("/v1/chat/completions", json=chat), 403)


async def test_uses_are_counted_exactly_over_replicas_and_a_refusal_is_none(gateway: Start) -> None:
    async with gateway(keys=OPS) as here, gateway(keys=OPS) as there:
        key = await site(here)
        text = token(key, user="ann", jti="once", uses=7)
        await becomes(there, text, 200)
        async with holder(here, text) as one, holder(there, text) as two:
            body = {"async": True, "model": "m"}
            refused = [await call.post("/api/openai", json=body) for call in (one, two)]
            assert [answer.json()["code"] for answer in refused] == ["NO_WORKER"] * 2
            async with here.worker2(["m"]), there.worker2(["m"]):
                answers = await asyncio.gather(
                    *(call.post("/api/openai", json=body) for call in (one, two) for _ in range(50))
                )
            counted = Counter((answer.status_code, answer.json().get("code")) for answer in answers)
            assert counted == {(202, None): 7, (403, "TOKEN_USED_UP"): 93}
        link, keys = here.served.gateway.link, here.served.gateway.keys
        name = keys("uses", token="site/once")
        assert await link.command("GET", name) == b"7"
        async with holder(here, token(key, user="ann", jti="other", uses=7)) as other, here.worker2(["m"]):
            assert (await other.post("/api/openai", json=body)).status_code == 202, "counted by name"


async def test_tokens_end_with_their_key_at_every_replica(gateway: Start) -> None:
    async with gateway(keys=OPS) as here, gateway(keys=OPS) as there:
        as_ops(there)
        first = await site(here)
        of_first = token(first, user="ann")
        await becomes(there, of_first, 200)
        second = (await rotate(here, "site"))["secret"]
        of_second = token(second, user="ann")
        await becomes(there, of_second, 200)
        assert (await who(there, of_first)).status_code == 200, "side by side"
        third = (await rotate(here, "site", keepMs=0))["secret"]
        await becomes(there, of_second, 401)
        await becomes(there, token(third, user="ann"), 200)
        await revoke(here, "site")
        await becomes(there, token(third, user="ann"), 401)


async def test_what_a_token_has_begun_goes_on_unless_its_key_is_revoked_at_once(gateway: Start) -> None:
    async with gateway(keys=OPS) as here, gateway(keys=OPS) as there, here.worker2(["m"], slots=2) as worker:
        text = token(await site(here), user="ann")
        await becomes(there, text, 200)
        body = {"model": "m", "messages": [], "stream": True}
        async with holder(there, text) as ann, events(ann, "POST", "/api/openai", json=body) as stream:
            task = await worker.take()
            await worker.chunk(task, "one")
            await stream.until("chunk")
            await revoke(here, "site")
            await becomes(there, text, 401)
            await worker.chunk(task, " two", 2)
            await stream.until("chunk")
            await revoke(here, "site", now=True)
            last = (await stream.rest())[-1]
            assert last.event == "cancelled" or last.data["reason"] == "revoked", (
                "the task ends, and so does the stream"
            )


async def test_a_key_begins_and_ceases_to_sign(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        first = (await create(talk, id="site", delegating=True))["secret"]
        assert (await who(talk, token(first, user="a"))).status_code == 401
        refused = await told(
            await talk.http.patch(f"{KEYS}/site", json={"signing": True, "delegating": False}), 400
        )
        assert "only a delegating key" in refused["fields"]["signing"]
        row = await change(talk, "site", signing=True)
        assert "rotate it" in row["notes"][0]
        second = (await rotate(talk, "site"))["secret"]
        for text, status in ((token(first, user="a"), 401), (token(second, user="a"), 200)):
            assert (await who(talk, text)).status_code == status
        await change(talk, "site", signing=None)
        assert (await who(talk, token(second, user="a"))).status_code == 401
        await change(talk, "site", signing=True)
        await change(talk, "site", note="again")
        assert (await who(talk, token(second, user="a"))).status_code == 401, "it is forgotten"
        said = json.dumps(
            [await told(await talk.http.get(KEYS)), await told(await talk.http.get("/api/admin/audit"))]
        )
        assert "signing_key" not in said


async def test_limits_and_usage_are_those_of_the_user(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk, talk.worker2(["m"], slots=4) as worker:
        key = await site(talk, user_limits={"requests_per_day": 1}, limits={"requests_per_day": 100})
        body = {"async": True, "model": "m"}
        for user in ("ann", "bob"):
            async with holder(talk, token(key, user=user)) as one:
                assert (await one.post("/api/openai", json=body)).status_code == 202
                await worker.answer(await worker.take(), "x", lastSeq=0)
                assert (await one.post("/api/openai", json=body)).json()["code"] == "RATE_LIMITED"
        async with holder(talk, token(key, user="ann")) as ann:
            account = (await ann.get("/api/me")).json()
            assert (account["limits"], account["userLimits"]["requestsPerDay"]["remaining"]) == ({}, 0)

            async def recorded() -> bool:
                rows = (await ann.get("/api/usage")).json()
                return bool(rows["total"]["tasks"] == 1)

            await until(recorded, "the usage to be told to its user")
