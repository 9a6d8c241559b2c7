"""Keys that are made while the gateway runs: created, shown, changed, rotated, revoked; and what is refused."""

import json
import time
from typing import Any

import pytest
from sqlalchemy import select
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
    status,
    told,
)
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import worker_v2
from tests.support.serving import until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from fairlane.gateway.accounts.admin import MAX_SECRETS
from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.database.tables import secrets
from fairlane.gateway.prices.quota import Quota
from fairlane.queues.clock import now_ms

pytestmark = pytest.mark.anyio


async def test_no_answer_and_no_record_holds_a_hash_or_a_secret_again(
    gateway: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        first = (await create(talk, id="app"))["secret"]
        second = (await rotate(talk, "app"))["secret"]
        later = [
            await change(talk, "app", note="n"),
            await told(await talk.http.get(f"{KEYS}/app")),
            await told(await talk.http.get(KEYS)),
            await revoke(talk, "app"),
            await told(await talk.http.get("/api/admin/audit")),
        ]
        said = json.dumps(later) + capsys.readouterr().out
        for token in (first, second, secret("ops")):
            assert token not in said
            assert digest(token) not in said
            assert digest(token)[:16] not in said
        entries = [
            (entry["action"], entry["target"], entry["actor"]) for entry in reversed(later[-1]["entries"])
        ]
        assert entries == [(what, "key app", "ops") for what in ("create", "rotate", "update", "revoke")]
        changed = later[-1]["entries"][1]
        assert (changed["before"], changed["after"]) == ({"note": ""}, {"note": "n"})


async def test_keys_are_listed_by_id_with_those_of_the_configuration(gateway: Start) -> None:
    async with gateway(keys=[*OPS, key("m1")]) as talk:
        as_ops(talk)
        for key_id in ("Zed", "m0", "m2"):
            await create(talk, id=key_id, note="A Note" if key_id == "m2" else "")
        await create(talk, id="gpu", kind="worker", models=["m"])
        everything = await told(await talk.http.get(KEYS))
        assert [(row["id"], row["source"][:4]) for row in everything["keys"]] == [
            *(("Zed", "data"), ("gpu", "data"), ("m0", "data"), ("m1", "conf")),
            *(("m2", "data"), ("ops", "conf"), ("tests", "conf")),
        ]
        assert everything["next"] is None
        paged, after = [], ""
        while after is not None:
            page = await told(await talk.http.get(KEYS, params={"limit": 2, "after": after}))
            paged += page["keys"]
            after = page["next"]
        assert [row["id"] for row in paged] == [row["id"] for row in everything["keys"]]

        async def ids(**wanted: str) -> list[str]:
            return [row["id"] for row in (await told(await talk.http.get(KEYS, params=wanted)))["keys"]]

        assert await ids(kind="worker") == ["gpu", "tests"]
        assert await ids(text="a nOTe") == ["m2"]
        assert await ids(text="M1") == ["m1"]
        assert await ids(text="%") == []
        shown = await told(await talk.http.get(f"{KEYS}/ops"))
        assert (shown["source"], shown["settings"]["scopes"], shown["createdAt"]) == (
            "configuration",
            ["admin"],
            None,
        )


async def test_the_first_key_closes_an_open_gateway_and_must_be_an_admins(gateway: Start) -> None:
    async with gateway() as talk, connect(talk.served.ws, proxy=None) as open_worker:
        for body in ({"id": "app"}, {"id": "gpu", "kind": "worker"}):
            refused = await talk.http.post(KEYS, json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "FIRST_KEY_NOT_ADMIN")
        made = await create(talk, id="boss", scopes=["admin"])
        assert "Workers need tokens, too, and those that were connected are cut off" in made["notes"][0]
        assert await talk.http.get("/api/me") is not None
        assert (await talk.http.get("/api/me")).status_code == 401
        await open_worker.wait_closed()
        assert (open_worker.close_code, open_worker.close_reason) == (
            4401,
            "the gateway wants worker tokens now",
        )
        with pytest.raises(InvalidStatus):
            async with connect(talk.served.ws, proxy=None):
                pass
        talk.http.headers.update(bearer(made["secret"]))
        token = (await create(talk, id="gpu", kind="worker"))["secret"]
        assert token.startswith("flw_gpu_")
        async with worker_v2(talk.served.ws, "m", token=token):
            pass
        for key_id in ("boss",):
            refused = await talk.http.post(f"{KEYS}/{key_id}/revoke", json={})
            assert refused.status_code == 409
    async with gateway() as talk:  # and so it is after a restart
        assert await status(talk, "nobody") == 401
        assert await status(talk, made["secret"]) == 200


async def test_the_first_key_does_not_expire(gateway: Start) -> None:
    async with gateway() as talk:
        ends = int(time.time() * 1000) + 60_000
        answer = await talk.http.post(KEYS, json={"id": "one", "scopes": ["admin"], "expires": ends})
        assert (await told(answer, 409))["code"] == "LAST_ADMIN_KEY"
        assert (await talk.http.get("/api/me")).json()["open"], "nothing was made"


async def test_the_last_admin_is_kept_and_nobody_revokes_the_key_of_the_call(gateway: Start) -> None:
    async with gateway() as talk:
        one = await create(talk, id="one", scopes=["admin"])
        talk.http.headers.update(bearer(one["secret"]))

        async def refused(method: str, path: str, **body: Any) -> str:
            answer = await talk.http.request(method, f"{KEYS}/{path}", json=body)
            return str((await told(answer, 409))["code"])

        assert await refused("POST", "one/revoke") == "KEY_IN_USE"
        assert await refused("PATCH", "one", scopes=None) == "LAST_ADMIN_KEY"
        soon = int(time.time() * 1000) + 60_000
        assert await refused("PATCH", "one", expires=soon) == "LAST_ADMIN_KEY"
        two = await create(talk, id="two", scopes=["call", "admin"])
        assert await refused("POST", "one/revoke") == "KEY_IN_USE"
        talk.http.headers.update(bearer(two["secret"]))
        await revoke(talk, "one")
        assert await refused("PATCH", "two", scopes=None) == "LAST_ADMIN_KEY"
        assert await refused("PATCH", "one", note="n") == "KEY_REVOKED"
        assert await refused("POST", "one/rotate") == "KEY_REVOKED"
        assert (await revoke(talk, "one"))["status"] == "revoked", "again makes no difference"
        assert await status(talk, one["secret"]) == 401


async def test_a_changed_key_counts_at_once_and_null_takes_back(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        made = await create(talk, id="site", tier="paid")
        changed = await change(talk, "site", tier=None, delegating=True, user_from="body.user", weight=3)
        assert changed["settings"]["tier"] == "free"
        account = await told(
            await talk.http.get("/api/me", headers={**bearer(made["secret"]), "X-Fairlane-User": "ann"})
        )
        assert (account["user"], account["tier"], account["delegating"]) == ("site/ann", "free", True)
        refused = await told(await talk.http.patch(f"{KEYS}/site", json={"delegating": None}), 400)
        assert refused["fields"] == {"user_from": "only a delegating key has users"}


async def test_old_and_new_secret_are_valid_side_by_side_for_a_time(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        first = (await create(talk, id="app"))["secret"]
        second = await rotate(talk, "app")
        assert [await status(talk, token) for token in (first, second["secret"])] == [200, 200]
        assert [secret["validUntil"] is None for secret in second["secrets"]] == [False, True]
        third = await rotate(talk, "app", keepMs=300)
        await becomes(talk, first, 401)
        assert [await status(talk, token) for token in (second["secret"], third["secret"])] == [401, 200]
        fourth = await rotate(talk, "app", keepMs=0)
        assert [await status(talk, token) for token in (third["secret"], fourth["secret"])] == [401, 200]
        for _ in range(9):
            await rotate(talk, "app")
        refused = await told(await talk.http.post(f"{KEYS}/app/rotate", json={}), 409)
        assert refused["code"] == "TOO_MANY_SECRETS"
        assert len((await rotate(talk, "app", keepMs=0))["secrets"]) == 1


async def test_rotating_without_end_leaves_a_bounded_number_of_ended_secrets(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        first = (await create(talk, id="app"))["secret"]
        second = (await rotate(talk, "app", keepMs=60_000))["secret"]
        for _ in range(2 * MAX_SECRETS):
            last = (await rotate(talk, "app", keepMs=0))["secret"]
        assert [await status(talk, token) for token in (first, second, last)] == [401, 401, 200]
        async with talk.served.gateway.database.reading() as connection:
            kept = set(await connection.scalars(select(secrets.c.sha256)))
        assert len(kept) == MAX_SECRETS + 1
        assert digest(last) in kept
        assert digest(first) not in kept, "the oldest go"


async def test_limits_are_changed_one_by_one(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)

        def limits(row: dict[str, Any], of: str = "limits") -> dict[str, int]:
            return {name: value for name, value in row["settings"][of].items() if value is not None}

        made = await create(
            talk, id="site", delegating=True, limits={"max_running": 3, "max_waiting": None}, user_limits={}
        )
        assert (limits(made), limits(made, "user_limits")) == ({"max_running": 3}, {})
        row = await change(talk, "site", limits={"requests_per_minute": 5}, user_limits={"max_waiting": 2})
        assert limits(row) == {"max_running": 3, "requests_per_minute": 5}
        row = await change(talk, "site", limits={"max_running": None})
        assert (limits(row), limits(row, "user_limits")) == ({"requests_per_minute": 5}, {"max_waiting": 2})
        assert limits(await change(talk, "site", limits={})) == {"requests_per_minute": 5}
        row = await change(talk, "site", limits=None)
        assert (limits(row), limits(row, "user_limits")) == ({}, {"max_waiting": 2})
        row = await change(talk, "site", user_limits={"max_waiting": None}, delegating=None)
        assert limits(row, "user_limits") == {}


async def test_a_quota_is_changed_part_by_part(gateway: Start, capsys: pytest.CaptureFixture[str]) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)

        def quota(row: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = row["settings"]["quota"]
            return found

        nothing = {"budget": None, "per": None, "otherwise": None}
        assert (await create(talk, id="other"))["settings"]["quota"] is None
        made = await create(talk, id="app", tier="paid", quota={})
        assert quota(made) == {"of": "key", **nothing}
        assert capsys.readouterr().out.count("a key has a quota, but no price holds now for some models") == 1
        row = await change(talk, "app", quota={"budget": "12.345678", "per": "day"})
        assert quota(row) == {"of": "key", "budget": 12.345678, "per": "day", "otherwise": None}
        row = await change(talk, "app", quota={"budget": 20.1, "otherwise": "free"})
        assert quota(row) == {"of": "key", "budget": 20.1, "per": "day", "otherwise": "free"}
        (proof,) = [
            one.principal
            for one in talk.served.gateway.current.callers._callers.values()
            if one.principal.key_id == "app"
        ]
        assert proof.quota == Quota(of_user=False, budget=20_100_000, per="day", otherwise="free")
        row = await change(talk, "app", quota={"budget": None, "per": None, "otherwise": None})
        assert quota(row) == {"of": "key", **nothing}, "it still has one"
        assert (await change(talk, "app", quota=None))["settings"]["quota"] is None


async def test_a_key_expires_by_itself_and_a_worker_with_it(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        soon = now_ms() + 3_000
        made = await create(talk, id="app", expires=soon)
        token = (await create(talk, id="gpu", kind="worker", expires=soon))["secret"]
        assert await status(talk, made["secret"]) == 200
        async with worker_v2(talk.served.ws, "m", token=token) as worker:
            await becomes(talk, made["secret"], 401)
            assert now_ms() >= soon
            assert await worker.closed() == 4401
        assert (await told(await talk.http.get(f"{KEYS}/app")))["status"] == "expired"
        await change(talk, "app", expires=None)
        assert await status(talk, made["secret"]) == 200


async def test_keys_of_the_configuration_hold_and_cannot_be_changed_here(
    gateway: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        app = await create(talk, id="app", scopes=["admin"])
        for method, path in (("PATCH", "ops"), ("POST", "ops/revoke"), ("POST", "ops/rotate")):
            refused = await told(await talk.http.request(method, f"{KEYS}/{path}", json={}), 409)
            assert refused["code"] == "KEY_CONFIGURED"
        assert (await talk.http.post(KEYS, json={"id": "ops"})).status_code == 409
    capsys.readouterr()
    async with gateway(keys=[*OPS, key("app", tier="paid")]) as talk:  # the file's wins
        as_ops(talk)
        assert [await status(talk, token) for token in (app["secret"], secret("app"))] == [401, 200]
        await create(talk, id="another")
        assert capsys.readouterr().out.count("a key of the database is not applied") == 1
        rows = (await told(await talk.http.get(KEYS, params={"text": "app"})))["keys"]
        assert [(row["source"], row["status"]) for row in rows] == [
            ("configuration", "valid"),
            ("database", "replaced"),
        ]
        refused = await told(await talk.http.post(f"{KEYS}/app/revoke", json={}), 409)
        assert refused["code"] == "KEY_CONFIGURED"
    async with gateway(keys=OPS) as talk:  # and lets it be again
        assert await status(talk, app["secret"]) == 200


async def test_a_key_whose_tier_is_gone_does_not_hold(gateway: Start) -> None:
    own = {f"vip_{mode}": {"tier": "vip", "mode": mode} for mode in ("stream", "batch", "vision")}
    async with gateway(keys=OPS, queues=own) as talk:
        made = await create(as_ops(talk), id="app", tier="vip")
        assert await status(talk, made["secret"]) == 200
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        assert await status(talk, made["secret"]) == 401
        assert (await told(await talk.http.get(f"{KEYS}/app")))["status"] == "unusable"
        await change(talk, "app", tier="paid")
        assert await status(talk, made["secret"]) == 200


BAD: list[tuple[dict[str, Any], str]] = [
    ({"teir": "paid"}, "'teir' is no part of this call; did you mean tier?"),
    ({"tier": "gold"}, "no queue has the tier 'gold'; there are free, paid"),
    ({"tier": 3}, "tier should be a valid string"),
    ({"weight": 0}, "weight should be greater than or equal to 0.001"),
    ({"weight": "2"}, "weight should be a valid number"),
    ({"weight": True}, "weight should be a valid number"),
    ({"models": []}, ""),
    ({"models": [""]}, "models.0 "),
    ({"models": "m"}, "models should be a valid array"),
    ({"scopes": ["root"]}, "scopes.0 should be 'call', 'viewer', 'metrics' or 'admin'"),
    ({"signing": "yes"}, "signing should be a valid boolean"),
    ({"user_from": "body.user"}, "only a delegating key has users"),
    ({"quota": {"of": "user"}}, "only a delegating key has several users: set `of: key`"),
    ({"quota": {"of": "all"}}, "quota.of should be 'key' or 'user'; got 'all'"),
    ({"quota": {"budget": 5}}, "a budget needs `per`: day or month"),
    ({"quota": {"per": "day"}}, "`per` is the period of a budget: set `budget`, too"),
    ({"quota": {"budget": -1, "per": "day"}}, "quota.budget should be from 0 to 1000000000 credits; got -1"),
    ({"quota": {"budget": 0.1234567, "per": "day"}}, "quota.budget has more than 6 decimals; got 0.1234567"),
    ({"quota": {"budget": True, "per": "day"}}, "quota.budget should be a number of credits, such as 12.5"),
    ({"quota": {"otherwise": "gold"}}, "no queue has the tier 'gold'; there are free, paid"),
    ({"quota": {"otherwise": "free"}}, "it is the tier of the key itself"),
    ({"quota": {"budgt": 1}}, "'quota.budgt' is no part of this call; did you mean budget?"),
    ({"quota": 5}, "quota "),
    ({"expires": 1}, "expires lies in the past"),
    ({"expires": "tomorrow"}, "expires should be a valid integer"),
    ({"expires": 10**16}, "expires should be less than or equal to"),
    ({"note": "a\x00b"}, "note may hold no control characters"),
    ({"note": "x" * 501}, "note should have at most 500 characters"),
    ({"user_from": "a b", "delegating": True}, "user_from must be the name of a header, or body.user"),
    ({"sha256": "0" * 64}, "'sha256' is no part of this call"),
    (
        {"limits": {"request_per_minute": 5}},
        "'limits.request_per_minute' is no part of this call; did you mean requests_per_minute?",
    ),
    ({"limits": {"max_running": 0}}, "limits.max_running should be greater than or equal to 1"),
    ({"limits": 5}, "limits "),
    ({"id": "a b"}, "id must be 1 to 64 letters, digits, dots, dashes or underscores"),
    ({"id": ""}, "id "),
    ({"kind": "admin"}, "kind should be 'caller' or 'worker'"),
    ({"kind": "worker", "tier": "paid"}, "tier is no setting of a worker token"),
    ({"kind": "worker", "scopes": ["admin"]}, "scopes is no setting of a worker token"),
]


async def test_bad_input_is_refused_with_a_sentence(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        for body, sentence in BAD:
            answer = await talk.http.post(KEYS, json=body)
            if sentence:
                assert answer.status_code == 400, (body, answer.text)
                assert sentence in answer.json()["error"], body
            changes = {name: value for name, value in body.items() if name not in ("id", "kind")}
        await create(talk, id="app")
        for body, sentence in BAD:
            changes = {name: value for name, value in body.items() if name not in ("id", "kind")}
            if sentence and changes == body:
                answer = await talk.http.patch(f"{KEYS}/app", json=body)
                assert answer.status_code == 400, (body, answer.text)
                assert sentence in answer.json()["error"], body
        for method, path, body, wanted in (
            ("PATCH", "app", {"id": "b"}, 400),
            ("PATCH", "nobody", {}, 404),
            ("PATCH", "%00", {}, 404),
            ("POST", "nobody/rotate", {}, 404),
            ("POST", "nobody/revoke", {}, 404),
            ("POST", "app/rotate", {"keepMs": -1}, 400),
            ("POST", "app/rotate", {"keepMs": 1.5}, 400),
            ("POST", "app/rotate", {"keep": 1}, 400),
            ("POST", "app/revoke", {"now": "yes"}, 400),
            ("POST", "app/revoke?now=true", {}, 400),
            ("GET", "nobody", None, 404),
            ("GET", "app?kind=root", None, 400),
        ):
            answer = await talk.http.request(method, f"{KEYS}/{path}", json=body)
            assert answer.status_code == wanted, (method, path, answer.text)
        for query in ({"limit": "0"}, {"kind": "x"}, {"after": "a b"}, {"text": "\x00"}):
            assert (await talk.http.get(KEYS, params=query)).status_code == 400, query
        rows = (await told(await talk.http.get(KEYS, params={"text": "app"})))["keys"]
        assert [row["status"] for row in rows] == ["valid"]


async def test_who_may_not_change_keys_is_refused_and_a_viewer_may_look(gateway: Start) -> None:
    async with gateway(keys=[*OPS, key("watch", scopes=["viewer"]), key("app")]) as talk:
        await create(as_ops(talk), id="made")
        for who, sees in (("watch", 200), ("app", 403), ("nobody", 401)):
            async with talk.client(secret(who)) as http:
                assert (await http.get(KEYS)).status_code == sees
                for method, path in (("POST", ""), ("PATCH", "/made"), ("POST", "/made/rotate")):
                    refused = await http.request(method, f"{KEYS}{path}", json={})
                    assert refused.status_code == (401 if sees == 401 else 403)


async def test_a_revoked_key_ends_new_calls_and_its_tasks_go_on(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk, talk.worker2(["m"]) as worker:
        made = await create(as_ops(talk), id="app")
        async with talk.client(made["secret"]) as http:
            call = talk.later(http.post("/api/openai", json={"model": "m", "messages": []}))
            task = await worker.take()
            await revoke(talk, "app")
            assert await status(talk, made["secret"]) == 401
            await worker.answer(task, "done", lastSeq=0)
            assert (await call).status_code == 200


async def test_when_a_key_was_used_last_is_written_at_the_end(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        used, unused = await create(talk, id="used"), await create(talk, id="unused")
        token = (await create(talk, id="gpu", kind="worker"))["secret"]
        assert await status(talk, used["secret"]) == 200
        begun = now_ms()
        async with worker_v2(talk.served.ws, "m", token=token):
            await talk.served.gateway.key_cache._write_used()
        rows = {row["id"]: row for row in (await told(await talk.http.get(KEYS)))["keys"]}
        assert rows["unused"]["lastUsedAt"] is None
        assert rows["ops"]["lastUsedAt"] is None
        assert min(rows["used"]["lastUsedAt"], rows["gpu"]["lastUsedAt"]) >= begun
        assert await status(talk, unused["secret"]) == 200
    async with gateway(keys=OPS) as talk:
        assert (await told(await as_ops(talk).http.get(f"{KEYS}/unused")))["lastUsedAt"] is not None


async def test_a_revoked_worker_token_closes_its_connections(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        token = (await create(as_ops(talk), id="gpu", kind="worker", models=["m", "n"]))["secret"]
        async with worker_v2(talk.served.ws, "*", token=token) as worker:
            [mine] = talk.served.gateway.dispatcher.pool
            assert mine.models == ("m", "n")
            await change(talk, "gpu", models=["n"])
            await until(lambda: mine.models == ("n",), "the token's models")
            await revoke(talk, "gpu")
            assert await worker.closed() == 4401
        with pytest.raises(InvalidStatus):
            async with worker_v2(talk.served.ws, "m", token=token):
                pass


async def test_an_operator_sees_what_is_left_of_a_keys_limits_and_of_a_users(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk, talk.worker2(["m"]):
        as_ops(talk)
        limits = {"limits": {"requests_per_day": 9}, "user_limits": {"requests_per_day": 5, "max_running": 2}}
        site = await told(await talk.http.post(KEYS, json={"id": "site", "delegating": True, **limits}), 201)
        task = {"model": "m", "async": True}
        for user in ("ann", "ann", "bob"):
            headers = bearer(site["secret"]) | {"X-Fairlane-User": user}
            assert (await talk.http.post("/api/openai", json=task, headers=headers)).status_code == 202

        async def left(user: str) -> tuple[dict[str, int], dict[str, int]]:
            of = {"user": user} if user else {}
            row = await told(await talk.http.get(f"{KEYS}/site", params=of))
            return tuple(  # type: ignore[return-value]
                {name: one["remaining"] for name, one in row[of].items()} for of in ("limits", "userLimits")
            )

        assert await left("") == ({"requestsPerDay": 6}, {})
        assert await left("ann") == ({"requestsPerDay": 6}, {"requestsPerDay": 3, "maxRunning": 1})
        assert await left("joe") == ({"requestsPerDay": 6}, {"requestsPerDay": 5, "maxRunning": 2})
        refused = await talk.http.get(f"{KEYS}/ops", params={"user": "ann"})
        assert (refused.status_code, refused.json()["error"]) == (
            400,
            "ops is no delegating key, so it has no users",
        )
        assert "limits" not in (await told(await talk.http.get(KEYS)))["keys"][0], "a list does not ask Redis"
