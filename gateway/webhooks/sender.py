"""Sends what webhooks owe. Every replica does; SQL says what is owed, and which replica sends it (`delivery_queue.py`).

A request has a deadline, so a receiver that does not answer delays its own webhook, and takes a place of its key's for that time.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.settings import Settings
from fairlane.gateway.webhooks import signing
from fairlane.gateway.webhooks.attempts import Attempt, Policy
from fairlane.gateway.webhooks.delivery_queue import Delivery, DeliveryQueue, Webhook, Written
from fairlane.gateway.webhooks.events import EVERY_USER, body_of
from fairlane.gateway.webhooks.posting import Poster, host_of
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.loops import end_tasks, run_periodically
from fairlane.queues.metrics import WEBHOOK_REQUESTS, WEBHOOKS_GIVEN_UP, Recorder
from fairlane.workers.adapters.endpoints.addresses import read_networks

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
RETRY_S = 2.0
MAX_SERVED = 32
"""Webhooks that a replica sends to at the same time; half of them at most are of one key."""
OFF_AFTER_MS = 5 * 24 * 3_600_000
"""A webhook that fails for so long, without a success, is disabled."""
MAX_CONCURRENT = 8
"""Requests to one receiver at the same time; one, while it fails."""
MARGIN_MS = 20_000
"""A claim outlasts a request by this time, so that its result can be recorded."""
CLOSE_S = 5.0
PUT_OFF_MS = 3_600_000
_NO_KEY = "Nothing is sent while its key is not valid."
_UNEXPECTED = "The gateway failed to send; its log says how."


class Sender:
    """See the module. After `close`, other replicas, or the next start, send what is owed."""

    def __init__(
        self,
        database: Database,
        settings: Callable[[], Settings],
        knows: Callable[[str], bool],
        poster: Callable[[Callable[[], int]], Poster],
        metrics: Recorder,
        replica: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`knows`: whether a key of this id is valid. `poster`: makes one, when there is something to be sent first."""
        self._queue = DeliveryQueue(database, random.random)
        self._settings = settings
        self._knows = knows
        self._make_poster = poster
        self._poster: Poster | None = None
        self._metrics = metrics
        self._replica = replica
        self._now_ms = now_ms
        self._serving: set[asyncio.Task[None]] = set()
        self._of_key: Counter[str] = Counter()
        """Webhooks that are served, by their keys."""
        self._hurry = asyncio.Event()
        self._lines = RateLimitedLogger()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to send."""
        expected = (DatabaseUnavailable,)  # which the outbox logs
        self._task = run_periodically("webhooks", LOOK_S, self.look, expected=expected, wake=self._hurry)

    async def close(self) -> None:
        """Stop. Requests under way have CLOSE_S; then other replicas send them again."""
        await end_tasks(self._task)
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_S)
        await end_tasks(*self._serving)
        if self._poster is not None:
            await self._poster.aclose()

    async def look(self) -> None:
        """Claim webhooks that are due, and serve them. One key has half of the places."""
        settings = self._settings()
        free = MAX_SERVED - len(self._serving)
        if not settings.webhooks.enabled or free <= 0:
            return
        now = self._now_ms()
        until = now + settings.tuning.webhook_timeout_ms + MARGIN_MS
        for webhook in await self._queue.claim(now, until, free, self._of_key, MAX_SERVED // 2):
            self._of_key[webhook.key_id] += 1
            task = asyncio.create_task(self._serve(webhook), name=f"webhook {webhook.id}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, webhook: Webhook) -> None:
        """Send some of what a claimed webhook owes, and record the results."""
        try:
            if self._knows(webhook.key_id):
                await self._send_due(webhook)
            else:
                await self._queue.put_off(webhook, self._now_ms() + PUT_OFF_MS, _NO_KEY)
        except asyncio.CancelledError:
            with contextlib.suppress(DatabaseUnavailable):
                await self._queue.put_off(webhook, self._now_ms())
            raise
        except DatabaseUnavailable:
            pass  # the claim ends by itself, and what it was for is sent again
        except Exception:  # it is tried again in an hour, so that it fails no more often than that
            log.exception("cannot send a webhook", replica=self._replica, webhook=webhook.id)
            with contextlib.suppress(DatabaseUnavailable):
                await self._queue.put_off(webhook, self._now_ms() + PUT_OFF_MS, _UNEXPECTED)
        finally:
            self._of_key[webhook.key_id] -= 1
            if not self._of_key[webhook.key_id]:
                del self._of_key[webhook.key_id]
            self._hurry.set()  # others may wait for its place

    async def _send_due(self, webhook: Webhook) -> None:
        most = 1 if webhook.health.fails else MAX_CONCURRENT
        deliveries = await self._queue.due(webhook, self._now_ms(), most)
        attempts = await asyncio.gather(*(self._send(webhook, delivery) for delivery in deliveries))
        written = await self._record(webhook, list(zip(deliveries, attempts, strict=True)))
        if written is not None:
            self._report(webhook, written)

    async def _send(self, webhook: Webhook, delivery: Delivery) -> Attempt:
        """One request. Never raises for what a receiver does."""
        poster = self._poster = self._poster or self._make_poster(self._now_ms)
        settings, now = self._settings(), self._now_ms()
        user = delivery.user_name.partition("/")[2] if webhook.user_name == EVERY_USER else ""
        body = body_of(delivery.event_id, delivery.event, delivery.object_id, delivery.created, user)
        headers = signing.headers(delivery.id, now // 1000, body, webhook.secrets(now))
        if webhook.url.startswith("http://") and not settings.webhooks.allow_http:
            refused = "The URL begins with http://, which an operator has to allow (webhooks.allow_http)."
            attempt = Attempt(now, 0, None, refused)
        else:
            attempt = await poster.post(
                *(webhook.url, headers, body),
                allowed=read_networks(settings.webhooks.allow_private),
                timeout_s=settings.tuning.webhook_timeout_ms / 1000,
            )
        outcome = "taken" if attempt.taken else "failed" if attempt.status is None else "rejected"
        self._metrics.count(WEBHOOK_REQUESTS, outcome)
        return attempt

    async def _record(self, webhook: Webhook, results: Sequence[tuple[Delivery, Attempt]]) -> Written | None:
        """Record results; retried as long as the claim lasts. Raises DatabaseUnavailable."""
        tuning = self._settings().tuning
        policy = Policy(tuning.webhook_retry_ms, tuning.webhook_give_up_ms, OFF_AFTER_MS)
        over = asyncio.get_running_loop().time() + MARGIN_MS / 1000 - RETRY_S
        while True:
            try:
                return await self._queue.record(webhook, results, policy, self._now_ms())
            except DatabaseUnavailable:
                if asyncio.get_running_loop().time() >= over:
                    raise
            await asyncio.sleep(RETRY_S)

    def _report(self, webhook: Webhook, written: Written) -> None:
        before, now = written.before, written.now
        whose = {
            "webhook": webhook.id,
            "key_id": webhook.key_id,
            "user": webhook.user_name,
            "host": host_of(webhook.url),
        }
        if written.given_up:
            self._metrics.count(WEBHOOKS_GIVEN_UP, "delivery", number=written.given_up)
            self._lines.log(
                log.warning, "webhook deliveries are given up", **whose, deliveries=written.given_up
            )
        if now.off_why:
            self._metrics.count(WEBHOOKS_GIVEN_UP, "webhook")
            self._lines.log(log.warning, "webhook is switched off", **whose, reason=now.off_why)
        elif now.rests and not before.rests:
            self._lines.log(log.warning, "webhook fails", **whose, reason=now.error)
        elif before.rests and not now.fails:
            self._lines.log(log.info, "webhook works again", **whose)


def poster(now_ms: Callable[[], int]) -> Poster:
    """One that trusts public authorities. It brings an HTTP client with it, of which a gateway without webhooks has no use."""
    from fairlane.workers.adapters.endpoints.client import Client, SystemResolver, public_authorities  # noqa: PLC0415

    return Poster(Client(SystemResolver(), public_authorities, keep_alive=False), now_ms)
