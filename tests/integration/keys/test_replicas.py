"""Keys of one database at several replicas: what is changed at one holds at the others, also while the database is away."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.integration.admin.test_commands import fairlane
from tests.integration.keys.operating import (
    KEYS,
    OPS,
    Start,
    as_ops,
    bearer,
    becomes,
    create,
    revoke,
    rotate,
    status,
    told,
)
from tests.integration.native.keys import secret
from tests.support.databases import Postgres, running_postgres
from tests.support.processes import gateway_process
from tests.support.rawworkers import worker_v2
from tests.support.serving import http_client, until
from tests.support.streams import events
from tests.support.talk import Talk, talking

from fairlane.gateway.accounts.key_cache import CHECK_S
from fairlane.gateway.database.errors import DatabaseUnavailable

pytestmark = pytest.mark.anyio


async def test_what_is_changed_at_one_replica_holds_at_the_other(gateway: Start) -> None:
    assert CHECK_S <= 0.4
    async with gateway(keys=OPS) as one, gateway(keys=OPS) as other:
        as_ops(one), as_ops(other)
        made = await create(one, id="app")
        await becomes(other, made["secret"], 200)
        second = await rotate(other, "app", keepMs=0)
        await becomes(one, made["secret"], 401)
        await becomes(one, second["secret"], 200)
        token = (await create(one, id="gpu", kind="worker"))["secret"]

        async def known() -> bool:
            return other.served.gateway.current.callers.authenticate_worker(f"Bearer {token}") is not None

        await until(known, "the token to be known")
        async with worker_v2(other.served.ws, "m", token=token) as worker:
            await revoke(one, "gpu")
            assert await worker.closed() == 4401
        await revoke(one, "app")
        await becomes(other, second["secret"], 401)


async def test_the_first_key_closes_every_replica_and_nobody_slips_in_between(gateway: Start) -> None:
    async with gateway() as one, gateway() as other:
        looking = other.served.gateway.key_cache
        async with looking._reading:  # the other one has not looked yet
            boss = await create(one, id="boss", scopes=["admin"])
            assert other.served.gateway.current.callers.open
            wanted = other.later(other.http.post(KEYS, json={"id": "thief", "scopes": ["admin"]}))
            assert (await wanted).status_code == 401
        await becomes(other, "nobody", 401)
        assert await status(other, boss["secret"]) == 200


async def test_two_replicas_that_change_keys_at_the_same_time(gateway: Start) -> None:
    async with gateway(keys=OPS) as one, gateway(keys=OPS) as other:
        both = [as_ops(one), as_ops(other)]
        made = await asyncio.gather(
            *(talk.http.post(KEYS, json={"id": f"app-{n}"}) for n in range(4) for talk in both)
        )
        assert sorted(answer.status_code for answer in made) == [201] * 4 + [409] * 4
        rotated = await asyncio.gather(
            *(talk.http.post(f"{KEYS}/app-0/rotate", json={}) for _ in range(3) for talk in both)
        )
        secrets = [answer.json()["secret"] for answer in rotated]
        for talk in both:
            for token in secrets:
                await becomes(talk, token, 200)
        changed = await asyncio.gather(
            one.http.patch(f"{KEYS}/app-1", json={"weight": 2}),
            other.http.patch(f"{KEYS}/app-1", json={"note": "n"}),
        )
        assert [answer.status_code for answer in changed] == [200, 200]
        row = await told(await one.http.get(f"{KEYS}/app-1"))
        assert (row["settings"]["weight"], row["note"]) == (2, "n"), "none overwrites the other one's"
        ends = await asyncio.gather(
            *(talk.http.post(f"{KEYS}/app-2/revoke", json={"now": True}) for talk in both),
            *(talk.http.post(f"{KEYS}/app-2/rotate", json={}) for talk in both),
        )
        assert [answer.status_code for answer in ends[:2]] == [200, 200]
        assert {answer.status_code for answer in ends[2:]} <= {200, 409}
        assert (await told(await one.http.get(f"{KEYS}/app-2")))["status"] == "revoked"


async def test_of_two_admins_that_revoke_each_other_one_stays(gateway: Start) -> None:
    async with gateway() as one, gateway() as other:
        first = await create(one, id="first", scopes=["admin"])
        one.http.headers.update(bearer(first["secret"]))
        second = await create(one, id="second", scopes=["admin"])
        await becomes(other, second["secret"], 200)
        other.http.headers.update(bearer(second["secret"]))
        answers = await asyncio.gather(
            one.http.post(f"{KEYS}/second/revoke", json={}), other.http.post(f"{KEYS}/first/revoke", json={})
        )
        assert sorted(answer.status_code for answer in answers) in ([200, 401], [200, 409])


async def test_now_ends_calls_streams_and_tasks_wherever_they_are(gateway: Start) -> None:
    async with gateway(keys=OPS) as one, gateway(keys=OPS) as other, other.worker2(["m"]) as worker:
        made = await create(as_ops(one), id="site", delegating=True)
        as_ops(other)
        await becomes(other, made["secret"], 200)

        async def submit(talk: Talk, user: str, **more: Any) -> str:
            named = {**bearer(made["secret"]), "X-Fairlane-User": user}
            body = {"model": "m", "messages": [], "async": True, **more}
            return str(
                (await told(await talk.http.post("/api/openai", json=body, headers=named), 202))["taskId"]
            )

        running = await submit(one, "ann")
        await worker.take()
        waiting = [await submit(talk, user) for talk in (one, other) for user in ("ann", "bob")]
        kept = await one.submit(model="m")  # another key's
        call = other.later(
            other.http.post(
                "/api/openai", json={"model": "m", "messages": []}, headers=bearer(made["secret"])
            )
        )
        async with events(
            other.http,
            "GET",
            f"/api/sse-stream?taskId={running}",
            headers={**bearer(made["secret"]), "X-Fairlane-User": "ann"},
        ) as stream:

            async def counted() -> bool:
                return (await one.state())["counts"]["queued"] == 6

            await until(counted, "all to wait")
            done = await revoke(one, "site", now=True)
            assert done["cancelled"] >= 5
            assert (await stream.rest())[-1].event in ("bye", "cancelled")
        assert (await call).status_code in (401, 499), "by its key, or by its task"

        async def over() -> bool:
            rows = [
                await told(await one.http.get(f"/api/admin/tasks/{task_id}"))
                for task_id in [running, *waiting]
            ]
            return [row["status"] for row in rows] == ["cancelled"] * 5

        await until(over, "the tasks to be cancelled")
        await worker.skip_to("cancel")
        assert (await one.poll(kept))["status"] in ("queued", "executing")
        [entry] = [
            entry
            for entry in (await told(await one.http.get("/api/admin/audit")))["entries"]
            if entry["action"] == "revoke"
        ]
        assert entry["after"] == {"status": "revoked", "now": True, "cancelled": done["cancelled"]}


async def test_what_was_accepted_elsewhere_meanwhile_is_cancelled_too(gateway: Start) -> None:
    """The replica that has not heard of it yet takes one more task; it is found when all have."""
    async with gateway(keys=OPS) as one, gateway(keys=OPS) as other, other.worker2(["m"]):
        made = await create(as_ops(one), id="app")
        await becomes(other, made["secret"], 200)
        async with other.served.gateway.key_cache._reading:
            await revoke(one, "app", now=True)
            body = {"model": "m", "messages": [], "async": True}
            answer = await other.http.post("/api/openai", json=body, headers=bearer(made["secret"]))
            task_id = (await told(answer, 202))["taskId"]
        await becomes(other, made["secret"], 401)

        async def over() -> bool:
            row = await told(await one.http.get(f"/api/admin/tasks/{task_id}"))
            return row["status"] == "cancelled"

        await until(over, "the task to be cancelled")


async def test_a_backup_that_is_brought_back_holds(gateway: Start) -> None:
    async with gateway(keys=OPS) as talk:
        made = await create(as_ops(talk), id="app")
        async with talk.served.gateway.database.writing() as connection:
            for statement in ("DELETE FROM secrets", "DELETE FROM keys"):
                await connection.execute(text(statement))
            await connection.execute(text("UPDATE facts SET value = '0' WHERE name = 'keys_version'"))
        await becomes(talk, made["secret"], 401)


FORGET = ("DELETE FROM secrets", "DELETE FROM keys")


async def test_a_gateway_that_was_closed_stays_closed_when_the_keys_vanish(
    gateway: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup from before the first key is brought back."""
    async with gateway() as talk:
        made = await create(talk, id="boss", scopes=["admin"])
        assert capsys.readouterr().out.count("API keys are required now") == 1
        async with talk.served.gateway.database.writing() as connection:
            for statement in (*FORGET, "UPDATE facts SET value = '0' WHERE name = 'keys_version'"):
                await connection.execute(text(statement))
        await becomes(talk, made["secret"], 401)
        assert await status(talk, "nobody") == 401
        assert (await talk.http.post(KEYS, json={"id": "thief", "scopes": ["admin"]})).status_code == 401
        assert "the database has no keys any more" in capsys.readouterr().out
        await talk.served.gateway.reconfigure(talk.served.gateway.current.settings)
        assert (await talk.http.get("/api/me")).status_code == 401


async def test_keys_stay_while_the_database_does_not_know_their_version(
    gateway: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway() as talk:
        made = await create(talk, id="boss", scopes=["admin"])
        talk.http.headers.update(bearer(made["secret"]))
        async with talk.served.gateway.database.writing() as connection:
            for statement in (*FORGET, "DELETE FROM facts WHERE name = 'keys_version'"):
                await connection.execute(text(statement))
        said: list[str] = []

        def away() -> bool:
            said.append(capsys.readouterr().out)
            return "facts has no keys_version" in "".join(said)

        await until(away, "the log to say so")
        assert await status(talk, made["secret"]) == 200
        refused = await talk.http.post(KEYS, json={"id": "app"})
        assert (refused.status_code, refused.json()["code"]) == (503, "DATABASE_UNAVAILABLE")


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


async def test_without_the_database_keys_hold_and_changes_are_refused(
    redis_url: str, tmp_path: Path, own_postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"keys": OPS, "database_url": own_postgres.new("keys")}
    async with talking(redis_url, tmp_path, **settings) as talk, talk.worker2(["m"]) as worker:
        made = await create(as_ops(talk), id="app")
        await create(talk, id="leaked")
        own_postgres.stop()
        try:
            for method, path in (("POST", ""), ("PATCH", "/app"), ("POST", "/leaked/revoke")):
                refused = await talk.http.request(method, f"{KEYS}{path}", json={})
                assert refused.status_code == 503, refused.text
                assert refused.json()["code"] == "DATABASE_UNAVAILABLE"
                assert refused.headers["retry-after"] == "1"
            page = (await talk.http.get(KEYS, params={"text": "L"})).json()
            assert [(row["id"], row["lastUsedAt"]) for row in page["keys"]] == [("leaked", None)]
            assert "fl-pg-" in page["databaseError"]
            for key_id, source in (("app", "database"), ("ops", "configuration")):
                shown = (await talk.http.get(f"{KEYS}/{key_id}")).json()
                assert (shown["source"], shown["databaseError"]) == (source, page["databaseError"])
            done = await fairlane(talk, "key", "show", "app", FAIRLANE_API_KEY=secret("ops"))
            assert done.returncode == 0
            assert done.stderr.startswith("fairlane: the database is unavailable")
            said: list[str] = []

            def away() -> bool:
                said.append(capsys.readouterr().out)
                return "the database is unavailable" in "".join(said)

            await until(away, "the log to say so")
            seen = (await talk.state())["database"]
            assert (seen["up"], seen["since"] > 0) == (False, True)
            assert seen["reason"].startswith(seen["address"])
            async with talk.client(made["secret"]) as http:
                call = talk.later(http.post("/api/openai", json={"model": "m", "messages": []}))
                await worker.answer(await worker.take(), "done", lastSeq=0)
                assert (await call).status_code == 200
            with pytest.raises(DatabaseUnavailable):
                async with talking(redis_url, tmp_path, **settings):
                    pass
        finally:
            own_postgres.start()

        async def changed() -> bool:
            return (await talk.http.post(f"{KEYS}/leaked/revoke", json={})).status_code == 200

        await until(changed, "a change to be made")

        def back() -> bool:
            said.append(capsys.readouterr().out)
            return "the database is available again" in "".join(said)

        await until(back, "the log to say so")
        assert (await talk.state())["database"]["up"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_file_without_keys_is_taken_over_where_the_database_has_some(
    redis_url: str, tmp_path: Path, processes: int
) -> None:
    file = tmp_path / "fairlane.yaml"
    ops = OPS[0]
    file.write_text(f'keys: [{{id: ops, scopes: [admin], sha256: "{ops["sha256"]}"}}]\n')
    async with gateway_process(tmp_path, redis_url, processes=processes) as gateway:
        async with http_client(gateway.url, headers=bearer(secret("ops"))) as http:
            boss = await told(await http.post(KEYS, json={"id": "boss", "scopes": ["admin"]}), 201)

        async def statuses(token: str) -> set[int]:
            found = set()
            for _ in range(8):
                async with http_client(gateway.url, headers=bearer(token)) as http:
                    found.add((await http.get("/api/me")).status_code)
            return found

        async def known() -> bool:
            return await statuses(boss["secret"]) == {200}

        await until(known, "the key to be known")
        file.write_text("")
        gateway.signal(signal.SIGHUP)

        async def gone() -> bool:
            return await statuses(secret("ops")) == {401}

        await until(lambda: gateway.log.count("keys and limits read again") == processes, "the reload")
        await until(gone, "the file's key to be gone")
        # (one that was not asked before may not have looked at the database yet; one that forgot the key would not look again)
        await until(known, "the key to be known in every process")
        assert await statuses("nobody") == {401}
        assert "would open the gateway" not in gateway.log
    async with gateway_process(tmp_path, redis_url, processes=processes) as gateway:
        assert await statuses(boss["secret"]) == {200}
        assert await statuses("nobody") == {401}
        assert "no keys are configured: every program" not in gateway.log


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
async def test_off_loopback_no_key_is_made_where_the_database_has_some(
    redis_url: str, tmp_path: Path, processes: int
) -> None:
    async with gateway_process(tmp_path, redis_url) as gateway, http_client(gateway.url) as http:
        boss = await told(await http.post(KEYS, json={"id": "boss", "scopes": ["admin"]}), 201)
        http.headers.update(bearer(boss["secret"]))
        await told(await http.post(KEYS, json={"id": "gpu", "kind": "worker"}), 201)
    async with (
        gateway_process(tmp_path, redis_url, processes=processes, host="0.0.0.0") as gateway,
        http_client(gateway.url, headers=bearer(boss["secret"])) as http,
    ):
        assert (await http.get(KEYS)).status_code == 200
        gateway.signal(signal.SIGHUP)
        await until(lambda: gateway.log.count("keys and limits read again") == processes, "the reload")
        assert (await http.get(KEYS)).status_code == 200
        assert "is in a file" not in gateway.log
        assert "no worker tokens" not in gateway.log
        assert not list((tmp_path / "data").glob("first-*"))


@pytest.mark.slow
async def test_the_key_of_the_first_start_can_be_removed_once_there_are_others(
    redis_url: str, tmp_path: Path
) -> None:
    async with gateway_process(tmp_path, redis_url, host="0.0.0.0") as gateway:
        first = (tmp_path / "data" / "first-caller-key.secret").read_text().strip()
        async with http_client(gateway.url, headers=bearer(first)) as http:
            boss = await told(await http.post(KEYS, json={"id": "boss", "scopes": ["admin"]}), 201)
            await told(await http.post(KEYS, json={"id": "gpu", "kind": "worker"}), 201)
            refused = await told(await http.post(f"{KEYS}/first/revoke", json={}), 409)
            file = tmp_path / "data" / "first-caller-key.json"
            assert f"delete {file} and send SIGHUP" in refused["error"]
            gateway.signal(signal.SIGHUP)
            await until(lambda: "keys and limits read again" in gateway.log, "the reload")
            assert (await http.get(KEYS)).status_code == 200, "it still holds"
            file.unlink()
            gateway.signal(signal.SIGHUP)

            async def gone() -> bool:
                return (await http.get(KEYS)).status_code == 401

            await until(gone, "the first key to be gone")
            assert (await http.get(KEYS, headers=bearer(boss["secret"]))).status_code == 200
        assert gateway.log.count("is in a file") == 2
        assert first not in gateway.log
