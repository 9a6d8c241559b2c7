"""Receivers that fail, hang and recover, and the deliveries of others meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

import pytest
import standardwebhooks
from structlog.testing import capture_logs
from tests.integration.native.keys import key, secret
from tests.support.databases import place_database
from tests.support.receivers import LOCAL, Got, Receiver, Reply, receiving
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.webhooks import store
from fairlane.gateway.webhooks.enqueue import End, enqueue
from fairlane.gateway.webhooks.sender import Sender
from fairlane.gateway.webhooks.webhooks import Webhooks
from fairlane.workers.adapters.endpoints.client import Client

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
ACCOUNTS = [key("ops", scopes=["admin"]), key("acme"), key("other")]
QUICK = {"webhook_retry_ms": 20, "webhook_timeout_ms": 5000}
DAY_MS = 24 * 3_600_000


@pytest.fixture
def start(gateway: Start) -> Start:
    @contextlib.asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Talk]:
        async with gateway(keys=ACCOUNTS, webhooks=LOCAL, **{**QUICK, **settings}) as talk:
            talk.http.headers.update({"Authorization": f"Bearer {secret('acme')}"})
            yield talk

    return make


async def hook(talk: Talk, receiver: Receiver, who: str = "acme", **body: Any) -> dict[str, Any]:
    async with talk.client(secret(who)) as client:
        made = await client.post("/api/webhooks", json={"url": receiver.url, **body})
    assert made.status_code == 201, made.text
    told: dict[str, Any] = made.json()
    return told


async def end(talk: Talk, object_id: str, who: str = "acme", event: str = "batch.completed") -> None:
    """Something of theirs has ended."""
    async with talk.served.gateway.database.writing() as connection:
        now = talk.served.gateway.part(Webhooks)._now_ms()
        await enqueue(connection, [End(Owner(who, who), event, object_id, now)])


async def deliveries(talk: Talk, made: dict[str, Any], **query: Any) -> list[dict[str, Any]]:
    answer = await talk.http.get(f"/api/webhooks/{made['id']}/deliveries", params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["deliveries"]
    return rows


async def one(talk: Talk, made: dict[str, Any], status: str) -> dict[str, Any]:
    """Return the one delivery, once it has this status."""

    async def reached() -> bool:
        return bool(await deliveries(talk, made, status=status))

    await until(reached, f"a delivery that is {status}")
    [row] = await deliveries(talk, made, status=status)
    answer = await talk.http.get(f"/api/webhooks/{made['id']}/deliveries/{row['id']}")
    told: dict[str, Any] = answer.json()
    assert {name: told[name] for name in row} == row
    return told


async def test_a_failed_delivery_is_retried_under_its_id_until_it_succeeds(start: Start) -> None:
    answers = iter([500, b"nonsense", 302, 200])

    async with start() as talk, receiving(lambda _: next(answers)) as receiver:
        made = await hook(talk, receiver)
        await end(talk, "batch_1")
        told = await one(talk, made, "delivered")
        assert (told["attempts"], told["httpStatus"], told["error"], told["nextAt"]) == (4, 200, None, None)
        assert set(receiver.ids) == {told["id"]}
        assert len({got.body for got in receiver.got}) == 1
        for got in receiver.got:
            standardwebhooks.Webhook(made["secret"]).verify(got.body.decode(), got.headers)
        shown = (await talk.http.get(f"/api/webhooks/{made['id']}")).json()
        assert (shown["waiting"], shown["failing"]) == (0, None)
        assert shown["deliveredAt"] >= told["createdAt"]


async def test_a_delivery_is_given_up_at_its_time_and_can_be_sent_again_by_hand(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    well = False

    def reply(_: Got) -> Reply:
        return 204 if well else 503

    async with start(webhook_give_up_ms=150) as talk, receiving(reply) as receiver:
        made = await hook(talk, receiver)
        await end(talk, "batch_1")
        failed = await one(talk, made, "failed")
        assert (failed["httpStatus"], failed["nextAt"]) == (503, None)
        assert failed["endedAt"] >= failed["createdAt"] + 150
        assert failed["error"] == "The receiver answered 503."
        well = True
        path = f"/api/webhooks/{made['id']}/deliveries/{failed['id']}/redeliver"
        again = await talk.http.post(path)
        assert again.status_code == 202, again.text
        assert (again.json()["status"], again.json()["id"]) == ("waiting", failed["id"])


async def test_a_receiver_that_answers_410_gets_no_more_requests(start: Start) -> None:
    async with start() as talk, receiving(lambda _: 410) as receiver:
        made = await hook(talk, receiver)
        await end(talk, "batch_1")

        async def off() -> bool:
            return not (await talk.http.get(f"/api/webhooks/{made['id']}")).json()["enabled"]

        await until(off)
        shown = (await talk.http.get(f"/api/webhooks/{made['id']}")).json()
        assert shown["disabledReason"] == "The receiver answered 410: it is gone."
        for call in ("test", f"deliveries/{(await deliveries(talk, made))[0]['id']}/redeliver"):
            refused = await talk.http.post(f"/api/webhooks/{made['id']}/{call}")
            assert (refused.status_code, refused.json()["code"]) == (409, "WEBHOOK_DISABLED")
        assert len(receiver.got) == 1


async def test_receivers_that_never_answer_delay_no_other_key(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.gateway.webhooks.sender.MAX_WEBHOOKS", 8)
    async with (
        start(webhook_timeout_ms=60_000) as talk,
        receiving(lambda _: None) as dead,
        receiving() as well,
    ):
        for _ in range(10):
            await hook(talk, dead, "acme")
        for number in range(20):
            await end(talk, f"batch_{number}", "acme")
        await until(lambda: dead.got, "somebody to hang")
        await hook(talk, well, "other")
        for number in range(100):
            await end(talk, f"batch_{number}", "other")
        await until(lambda: len(set(well.ids)) == 100, "all of the other's")
        assert well.most_at_once <= 8
        assert dead.most_at_once <= 4 * 8, "its key has half of the places"


async def test_a_test_event_is_sent_whatever_the_events(start: Start) -> None:
    async with start() as talk, receiving() as receiver:
        made = await hook(talk, receiver, events=["batch.failed"])
        tested = await talk.http.post(f"/api/webhooks/{made['id']}/test")
        assert tested.status_code == 202
        await until(lambda: receiver.got, "the test")
        assert receiver.got[0].json["type"] == "webhook.test"
        assert receiver.got[0].json["data"] == {"id": made["id"]}
        assert receiver.got[0].id == tested.json()["id"]


async def test_after_rotation_both_secrets_sign(start: Start) -> None:
    async with start() as talk, receiving() as receiver:
        made = await hook(talk, receiver)
        rotated = (await talk.http.post(f"/api/webhooks/{made['id']}/rotate", json={})).json()
        assert rotated["secret"] != made["secret"]
        await end(talk, "batch_1")
        await until(lambda: len(receiver.got) == 1, "a request")
        assert len(receiver.got[0].headers["webhook-signature"].split(" ")) == 2
        for told in (made, rotated):
            standardwebhooks.Webhook(told["secret"]).verify(
                receiver.got[0].body.decode(), receiver.got[0].headers
            )
        last = (await talk.http.post(f"/api/webhooks/{made['id']}/rotate", json={"keepMs": 0})).json()
        await end(talk, "batch_2")
        await until(lambda: len(receiver.got) == 2, "another one")
        standardwebhooks.Webhook(last["secret"]).verify(
            receiver.got[1].body.decode(), receiver.got[1].headers
        )
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(rotated["secret"]).verify(
                receiver.got[1].body.decode(), receiver.got[1].headers
            )


async def test_a_url_that_is_not_allowed_is_rejected_at_creation_and_at_each_request(gateway: Start) -> None:
    async with gateway(keys=ACCOUNTS) as talk, receiving() as receiver:
        talk.http.headers.update({"Authorization": f"Bearer {secret('acme')}"})
        for url, why in (
            (receiver.url, "must begin with https://"),
            ("https://localhost:3000/hook", "a loopback address: an operator has to allow its network"),
            ("https://[::ffff:10.0.0.1]/", "a private address"),
            ("https://169.254.169.254/latest", "link-local"),
            ("https://2130706433/", "four plain numbers"),
            ("https://user:password@example.com/", "no user"),
            ("https://example.com/\r\nHost: x", "characters"),
            ("file:///etc/passwd", "absolute"),
        ):
            refused = await talk.http.post("/api/webhooks", json={"url": url})
            assert refused.status_code == 400, url
            assert why in refused.json()["error"], refused.json()
        made = (await talk.http.post("/api/webhooks", json={"url": "https://example.com/hook"})).json()
        async with talk.served.gateway.database.writing() as connection:  # as made when it was allowed
            await store.update_webhook(connection, made["id"], {"url": "https://localhost/hook"})
        await end(talk, "batch_1")

        async def tried() -> bool:
            return bool((await deliveries(talk, made))[0]["attempts"])

        await until(tried)
        [row] = await deliveries(talk, made)
        assert (row["status"], row["httpStatus"]) == ("waiting", None)
        assert "no address that may be called" in row["error"]
        assert receiver.connections == 0


async def test_two_gateways_send_each_once(redis_url: str, tmp_path: Path) -> None:
    place_database(tmp_path / "data")
    url = f"sqlite:///{tmp_path}/data/fairlane.db"
    settings: dict[str, Any] = {"keys": ACCOUNTS, "webhooks": LOCAL, "database_url": url, **QUICK}
    async with (
        talking(redis_url, tmp_path / "a", **settings) as a,
        talking(redis_url, tmp_path / "b", **settings) as b,
        receiving() as receiver,
    ):
        for number in range(6):
            await hook(a, receiver, "acme" if number % 2 else "other")
        for number in range(30):
            await asyncio.gather(end(a, f"a_{number}", "acme"), end(b, f"b_{number}", "other"))
        await until(lambda: len(set(receiver.ids)) == 180, "all")
        assert len(receiver.got) == 180, "none twice"


async def test_operators_list_all_and_can_disable_one(start: Start) -> None:
    async with start() as talk, receiving() as receiver, talk.client(secret("ops")) as ops:
        made = await hook(talk, receiver, url=f"{receiver.url}?token=secret")
        other = await hook(talk, receiver, "other")
        await end(talk, "batch_1")
        await until(lambda: receiver.got, "a request")
        assert (await talk.http.get("/api/admin/webhooks")).status_code == 403
        page = (await ops.get("/api/admin/webhooks")).json()
        assert {row["id"]: row["key"] for row in page["webhooks"]} == {
            made["id"]: "acme",
            other["id"]: "other",
        }
        assert "secret" not in str(page)
        first = (await ops.get("/api/admin/webhooks", params={"limit": 1})).json()
        rest = (await ops.get("/api/admin/webhooks", params={"after": first["next"]})).json()
        assert len(first["webhooks"]) == len(rest["webhooks"]) == 1
        off = await ops.patch(f"/api/admin/webhooks/{made['id']}", json={"enabled": False})
        assert (off.status_code, off.json()["enabled"]) == (200, False)
        shown = (await talk.http.get(f"/api/webhooks/{made['id']}")).json()
        assert shown["disabledReason"] == "An operator disabled it."
        acts = (await ops.get("/api/admin/audit", params={"action": "disable"})).json()["entries"]
        assert [act["target"] for act in acts] == [f"webhook {made['id']}"]
        assert (await ops.patch("/api/admin/webhooks/hook_0", json={"enabled": False})).status_code == 404


def sender_of(talk: Talk) -> Sender:
    [part] = [part for part in talk.served.gateway._parts if isinstance(part, Sender)]
    return part


async def told_error(talk: Talk, made: dict[str, Any]) -> str:
    async with talk.served.gateway.database.reading() as connection:
        row: Any = await store.find(connection, made["id"], None)
    assert row.claimed == 0
    error: str = row.error
    return error


async def test_nothing_is_sent_while_the_key_is_invalid(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.gateway.webhooks.sender.POSTPONE_MS", 1500)
    async with start() as talk, receiving() as receiver:
        sender = sender_of(talk)
        is_valid, sender._is_valid = sender._is_valid, lambda key_id: key_id != "acme"
        made = await hook(talk, receiver)
        await end(talk, "batch_1")

        async def put_off() -> bool:
            async with talk.served.gateway.database.reading() as connection:
                row: Any = await store.find(connection, made["id"], None)
            return bool(row.error)

        await until(put_off)
        assert await told_error(talk, made) == "Nothing is sent while its key is not valid."
        assert receiver.connections == 0
        sender._is_valid = is_valid
        await until(lambda: receiver.got, "the request")


async def test_an_unexpected_error_is_a_failed_attempt_and_its_delivery_is_given_up(start: Start) -> None:
    class Broken:
        """A client with a bug."""

        async def send(self, _: Any) -> None:
            raise RuntimeError("a bug")

        async def aclose(self) -> None:
            pass

    async with start(webhook_give_up_ms=1500) as talk, receiving() as receiver:
        sender_of(talk)._client = cast(Client, Broken())
        made = await hook(talk, receiver)
        with capture_logs() as logs:
            await end(talk, "batch_1")
            failed = await one(talk, made, "failed")
        assert (
            failed["error"] == await told_error(talk, made) == "The gateway failed to send; its log says how."
        )
        assert failed["attempts"] > 1
        errors = [line["event"] for line in logs if line["log_level"] == "error"]
        assert errors == ["cannot send a webhook"] * failed["attempts"]
