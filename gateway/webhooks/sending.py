"""Sends what webhooks owe. Every replica does; SQL says what is owed, and who sends it (`owed.py`).

Receivers are other people's machines: each request has a deadline, one that does not answer holds up its own webhook alone, and
seats are shared so that many of them hold up nobody else's (`seats.py`).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Sequence

import structlog

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.settings import WebhookSettings
from fairlane.gateway.webhooks import signing
from fairlane.gateway.webhooks.attempts import Attempt, Policy, Standing
from fairlane.gateway.webhooks.events import EVERY_USER, body_of
from fairlane.gateway.webhooks.owed import Candidate, Delivery, Owed, Webhook, Written
from fairlane.gateway.webhooks.posting import Poster, host_of
from fairlane.gateway.webhooks.seats import Seats
from fairlane.queues.logs.sums import FewLines
from fairlane.queues.loops import end_tasks, set_within
from fairlane.queues.metrics import WEBHOOK_REQUESTS, WEBHOOKS_GIVEN_UP, Recorder
from fairlane.workers.adapters.endpoints.addresses import read_networks
from fairlane.workers.adapters.endpoints.names import SystemNames

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
"""How often somebody looks whether something is owed."""
AGAIN_S = 2.0
"""How often it is tried again while SQL does not answer."""
TURN_S = 10.0
"""After so long a webhook gives its seat to others, and waits for the next one."""
AT_ONCE = 8
"""Requests to one receiver at a time; one, as long as it takes none."""
MARGIN_MS = 20_000
"""A claim lasts for as much longer than a request, so that its outcome can be written."""
CLOSE_S = 5.0
"""On the way down, requests under way have so long."""
PUT_OFF_MS = 3_600_000
"""One to which nothing can be sent, as its key is not valid, is looked at again after so long."""
_NO_KEY = "Nothing is sent while its key is not valid."
_UNEXPECTED = "The gateway failed to send; its log says how."


class Sender:
    """See the module. `start` begins, `close` ends; what is owed then is sent by others, or after the next start."""

    def __init__(
        self,
        database: Database,
        settings: Callable[[], WebhookSettings],
        knows: Callable[[str], bool],
        poster: Callable[[Callable[[], int]], Poster],
        metrics: Recorder,
        replica: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`knows`: whether a key of this id is valid. `poster`: makes one, when there is something to be sent first."""
        self._owed = Owed(database, random.random)
        self._settings = settings
        self._knows = knows
        self._make_poster = poster
        self._poster: Poster | None = None
        self._metrics = metrics
        self._replica = replica
        self._now_ms = now_ms
        self._seats = Seats(settings().at_once)
        self._serving: set[asyncio.Task[None]] = set()
        self._more = False
        """Others wait for a seat."""
        self._hurry = asyncio.Event()
        self._lines = FewLines()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="webhooks")

    async def close(self) -> None:
        """End. Requests under way have CLOSE_S; then their webhooks are others', who send them again."""
        self._closing = True
        await end_tasks(self._task)
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_S)
        await end_tasks(*self._serving)
        if self._poster is not None:
            self._poster.close()

    async def _run(self) -> None:
        while True:
            pause = LOOK_S
            self._hurry.clear()
            try:
                await self.look()
            except DatabaseUnavailable:
                pause = AGAIN_S  # which the outbox tells
            except Exception:  # what is owed is in SQL, and looked for again
                log.exception("cannot look what webhooks owe", replica=self._replica)
                pause = AGAIN_S
            await set_within(self._hurry, pause)

    async def look(self) -> None:
        """Begin to send for those that have something to be done, as far as there are seats. Raises DatabaseUnavailable."""
        settings = self._settings()
        self._seats.seats = settings.at_once
        self._more = False
        if not settings.enabled or self._seats.full:
            self._more = self._seats.full
            return
        chosen: list[Candidate] = []

        def choose(candidates: Sequence[Candidate]) -> Collection[str]:
            chosen.extend(self._seats.choose(candidates))
            self._more = len(chosen) < len(candidates)
            return [one.id for one in chosen]

        claimed = await self._owed.claim(
            self._now_ms(),
            self._claimed_until(),
            choose,
            without_keys=self._seats.full_keys,
            with_doubtful=self._seats.may_doubt,
        )
        by_id = {one.id: one for one in chosen}
        for webhook in claimed:
            self._seats.take(by_id[webhook.id])
            task = asyncio.create_task(self._serve(webhook), name=f"webhook {webhook.id}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    def _claimed_until(self) -> int:
        return self._now_ms() + self._settings().timeout_ms + MARGIN_MS

    # ---- one webhook ----------

    async def _serve(self, webhook: Webhook) -> None:
        """Send what one owes, until there is nothing, or its turn is over."""
        try:
            if self._knows(webhook.key_id):
                await self._send_all(webhook)
            else:
                await self._owed.put_off(webhook, self._now_ms() + PUT_OFF_MS, _NO_KEY)
        except asyncio.CancelledError:
            with contextlib.suppress(DatabaseUnavailable):
                await self._owed.release(webhook, self._now_ms())
            raise
        except DatabaseUnavailable:
            pass  # the claim ends by itself, and what it was for is sent (again)
        except Exception:  # what it owes waits for an hour, so that it fails no more often than that
            log.exception("cannot send a webhook", replica=self._replica, webhook=webhook.id)
            with contextlib.suppress(DatabaseUnavailable):
                await self._owed.put_off(webhook, self._now_ms() + PUT_OFF_MS, _UNEXPECTED)
        finally:
            # a name that nobody answers is asked for longer than a request may take, in a thread that cannot be stopped: it keeps
            # the seat until then, or names of a few would have all threads
            if self._poster is not None and (asked := self._poster.asked(webhook.url)):
                asked.add_done_callback(lambda _: self._leave(webhook))
            else:
                self._leave(webhook)

    def _leave(self, webhook: Webhook) -> None:
        self._seats.leave(webhook.id)
        if self._more:
            self._hurry.set()

    async def _send_all(self, webhook: Webhook) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_S

        def most(standing: Standing) -> int:
            if self._closing or loop.time() >= until:
                return 0
            return 1 if standing.fails else AT_ONCE

        deliveries = await self._owed.first(webhook, self._now_ms(), most(webhook.standing) or 1)
        while True:
            attempts = await asyncio.gather(*(self._send(webhook, delivery) for delivery in deliveries))
            written = await self._write(webhook, list(zip(deliveries, attempts, strict=True)), most)
            if written is None:
                return
            self._tell(written)
            if not written.next:
                return
            webhook, deliveries = written.webhook, written.next

    async def _send(self, webhook: Webhook, delivery: Delivery) -> Attempt:
        """One request. Never raises for what a receiver does."""
        poster = self._poster = self._poster or self._make_poster(self._now_ms)
        settings, now = self._settings(), self._now_ms()
        user = delivery.user_name.partition("/")[2] if webhook.user_name == EVERY_USER else ""
        body = body_of(delivery.event_id, delivery.event, delivery.object_id, delivery.created, user)
        headers = signing.headers(delivery.id, now // 1000, body, webhook.secrets(now))
        if webhook.url.startswith("http://") and not settings.allow_http:
            refused = "The URL begins with http://, which an operator has to allow (webhooks.allow_http)."
            attempt = Attempt(now, 0, None, refused)
        else:
            attempt = await poster.post(
                *(webhook.id, webhook.url, headers, body),
                allowed=read_networks(settings.allow_private),
                timeout_s=settings.timeout_ms / 1000,
            )
        outcome = "taken" if attempt.taken else "failed" if attempt.status is None else "rejected"
        self._metrics.count(WEBHOOK_REQUESTS, outcome)
        return attempt

    async def _write(
        self, webhook: Webhook, results: Sequence[tuple[Delivery, Attempt]], most: Callable[[Standing], int]
    ) -> Written | None:
        """Write what came of attempts; while SQL is away again and again, as long as the claim lasts. Raises
        DatabaseUnavailable."""
        settings = self._settings()
        policy = Policy(settings.retry_ms, settings.give_up_ms, settings.off_after_ms)
        over = asyncio.get_running_loop().time() + MARGIN_MS / 1000 - AGAIN_S
        while True:
            try:
                return await self._owed.write(
                    webhook, results, policy, self._now_ms(), self._claimed_until(), most
                )
            except DatabaseUnavailable:
                if asyncio.get_running_loop().time() >= over:
                    raise
            await asyncio.sleep(AGAIN_S)

    def _tell(self, written: Written) -> None:
        before, now, webhook = written.before, written.now, written.webhook
        whose = {
            "webhook": webhook.id,
            "key_id": webhook.key_id,
            "user": webhook.user_name,
            "host": host_of(webhook.url),
        }
        if written.given_up:
            self._metrics.count(WEBHOOKS_GIVEN_UP, "delivery", number=written.given_up)
            self._lines.tell(
                log.warning, "webhook deliveries are given up", **whose, deliveries=written.given_up
            )
        if now.off_why:
            self._metrics.count(WEBHOOKS_GIVEN_UP, "webhook")
            self._lines.tell(log.warning, "webhook is switched off", **whose, why=now.off_why)
        elif now.rests and not before.rests:
            self._lines.tell(log.warning, "webhook fails", **whose, why=now.error)
        elif before.rests and not now.fails:
            self._lines.tell(log.info, "webhook works again", **whose)


def poster(now_ms: Callable[[], int]) -> Poster:
    """One that trusts public authorities. It brings an HTTP client with it, of which a gateway without webhooks has no use."""
    from fairlane.workers.adapters.endpoints.connections import Connections, public_authorities  # noqa: PLC0415

    names = SystemNames()
    return Poster(Connections(names, public_authorities), names.asked, now_ms)
