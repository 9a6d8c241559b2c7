"""openai-node verifies and reads what webhooks send."""

import json
import time
from pathlib import Path

import pytest

from fairlane.gateway.webhooks.events import body_of, headers, new_secret

from .nodes import run_node

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_openai_node_unwraps_an_event_and_refuses_another_body(node_project: Path) -> None:
    secret = new_secret()
    body = body_of("evt_1", "response.completed", "resp_é", 1_700_000_000_123, "")
    signed = dict(headers("wh_1", int(time.time()), body, [new_secret(), secret]))
    sent = {"secret": secret, "body": body.decode(), "headers": signed}
    told = await run_node(node_project, "verify", "", client="webhooks.mjs", **sent)
    assert told == {"event": json.loads(body), "refused": "InvalidWebhookSignatureError"}
