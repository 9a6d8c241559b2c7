"""Sends deliveries. Every replica does; the queue in SQL decides which replica sends which webhook (`delivery_queue.py`).

A request has a deadline, so a receiver that does not answer delays its own webhook, and uses one place of its key for that time.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import DeliveryRow
from fairlane.gateway.settings import Settings
from fairlane.gateway.webhooks.delivery import Attempt, host_of, post, webhook_client
from fairlane.gateway.webhooks.delivery_queue import DeliveryQueue, Health, Policy, Webhook
from fairlane.gateway.webhooks.events import EVERY_USER, body_of
from fairlane.gateway.webhooks.events import headers as headers_of
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.loops import Periodic, cancel_and_wait
from fairlane.queues.metrics import WEBHOOK_REQUESTS, WEBHOOKS_GIVEN_UP, Recorder
from fairlane.workers.adapters.endpoints.addresses import read_networks

if TYPE_CHECKING:
    from fairlane.workers.adapters.endpoints.client import Client

log = structlog.get_logger("fairlane.gateway")

POLL_S = 1.0
MAX_WEBHOOKS = 32
"""Webhooks that a replica sends to at the same time; at most half of them are of one key."""
MAX_CONCURRENT = 8
"""Requests to one receiver at the same time; one, while it fails."""
MARGIN_MS = 20_000
"""A claim outlasts a request by this time, so that its result can be recorded."""
CLOSE_S = 5.0
POSTPONE_MS = 3_600_000
_INVALID_KEY = "Nothing is sent while its key is not valid."
_UNEXPECTED = "The gateway failed to send; its log says how."


class Sender(Periodic):
    """See the module. After `close`, other replicas, or the next start, send the waiting deliveries."""

    name = "webhooks"
    interval_s = POLL_S
    expected = (DatabaseUnavailable,)  # which the outbox logs

    def __init__(
        self,
        database: Database,
        settings: Callable[[], Settings],
        is_valid: Callable[[str], bool],
        metrics: Recorder,
        replica: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`is_valid`: whether the key of this id is."""
        self._queue = DeliveryQueue(database, random.random)
        self._settings = settings
        self._is_valid = is_valid
        self._client: Client | None = None
        self._metrics = metrics
        self._replica = replica
        self._now_ms = now_ms
        self._serving: set[asyncio.Task[None]] = set()
        self._of_key: Counter[str] = Counter()
        """Webhooks that are served, by key."""
        self.wake: asyncio.Event = asyncio.Event()
        self._lines = RateLimitedLogger()

    async def close(self) -> None:
        """Stop. Requests under way have CLOSE_S; other replicas send the interrupted ones again."""
        await super().close()
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_S)
        await cancel_and_wait(*self._serving)
        if self._client is not None:
            await self._client.aclose()

    async def step(self) -> None:
        """Claim due webhooks, and serve them."""
        settings = self._settings()
        free = MAX_WEBHOOKS - len(self._serving)
        if free <= 0:
            return
        now = self._now_ms()
        until = now + settings.tuning.webhook_timeout_ms + MARGIN_MS
        for webhook in await self._queue.claim(now, until, free, self._of_key, MAX_WEBHOOKS // 2):
            self._of_key[webhook.key_id] += 1
            task = asyncio.create_task(self._serve(webhook), name=f"webhook {webhook.id}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, webhook: Webhook) -> None:
        """Send some deliveries of a claimed webhook, and record the results."""
        try:
            if self._is_valid(webhook.key_id):
                await self._send_due(webhook)
            else:
                await self._queue.postpone(webhook, self._now_ms() + POSTPONE_MS, _INVALID_KEY)
        except DatabaseUnavailable:
            pass  # the claim ends by itself, and the deliveries are sent again
        except Exception:  # the same
            log.exception("cannot record a webhook's deliveries", replica=self._replica, webhook=webhook.id)
        finally:
            self._of_key[webhook.key_id] -= 1
            if not self._of_key[webhook.key_id]:
                del self._of_key[webhook.key_id]
            self.wake.set()  # a place is free

    async def _send_due(self, webhook: Webhook) -> None:
        most = 1 if webhook.health.fails else MAX_CONCURRENT
        deliveries = await self._queue.due(webhook, self._now_ms(), most)
        attempts = await asyncio.gather(*(self._send(webhook, delivery) for delivery in deliveries))
        tuning = self._settings().tuning
        policy = Policy(tuning.webhook_retry_ms, tuning.webhook_give_up_ms)
        results = list(zip(deliveries, attempts, strict=True))
        recorded = await self._queue.record(webhook, results, policy, self._now_ms())
        if recorded is not None:
            self._report(webhook, *recorded)

    async def _send(self, webhook: Webhook, delivery: DeliveryRow) -> Attempt:
        """Send one request, and return its result. An unexpected error is a failed attempt, so that the delivery is given up."""
        now = self._now_ms()
        try:
            attempt = await self._post(webhook, delivery, now)
        except Exception:
            log.exception("cannot send a webhook", replica=self._replica, webhook=webhook.id)
            attempt = Attempt(now, self._now_ms() - now, None, _UNEXPECTED)
        outcome = "accepted" if attempt.succeeded else "failed" if attempt.status is None else "rejected"
        self._metrics.count(WEBHOOK_REQUESTS, outcome)
        return attempt

    async def _post(self, webhook: Webhook, delivery: DeliveryRow, now: int) -> Attempt:
        client = self._client = self._client or webhook_client()
        settings = self._settings()
        user = delivery.user_name.partition("/")[2] if webhook.user_name == EVERY_USER else ""
        body = body_of(delivery.event_id, delivery.event, delivery.object_id, delivery.created, user)
        headers = headers_of(delivery.id, now // 1000, body, webhook.secrets(now))
        if webhook.url.startswith("http://") and not settings.webhooks.allow_private:
            error = "The URL begins with http://, which an operator has to allow (webhooks.allow_private)."
            return Attempt(now, 0, None, error)
        return await post(
            *(client, now, webhook.url, headers, body),
            allowed=read_networks(settings.webhooks.allow_private),
            timeout_s=settings.tuning.webhook_timeout_ms / 1000,
        )

    def _report(self, webhook: Webhook, now: Health, given_up: int) -> None:
        before = webhook.health
        facts = {
            "webhook": webhook.id,
            "key_id": webhook.key_id,
            "user": webhook.user_name,
            "host": host_of(webhook.url),
        }
        if given_up:
            self._metrics.count(WEBHOOKS_GIVEN_UP, "delivery", number=given_up)
            self._lines.log(log.warning, "webhook deliveries are given up", **facts, deliveries=given_up)
        if now.off_why:
            self._metrics.count(WEBHOOKS_GIVEN_UP, "webhook")
            self._lines.log(log.warning, "webhook disabled", **facts, reason=now.off_why)
        elif now.backs_off and not before.backs_off:
            self._lines.log(log.warning, "webhook fails", **facts, reason=now.error)
        elif before.backs_off and not now.fails:
            self._lines.log(log.info, "webhook works again", **facts)
