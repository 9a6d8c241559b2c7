"""openai-node verifies and reads what webhooks send."""

import json
import shutil
import time
from pathlib import Path

import pytest
from tests.support.processes import NO_PROXIES, process

from fairlane.gateway.webhooks.events import body_of
from fairlane.gateway.webhooks.signing import headers, new_secret

from .nodes import outcome

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_openai_node_unwraps_an_event_and_refuses_another_body(node_project: Path) -> None:
    secret = new_secret()
    body = body_of("evt_1", "response.completed", "resp_é", 1_700_000_000_123, "")
    sent = {
        "body": body.decode(),
        "headers": dict(headers("wh_1", int(time.time()), body, [new_secret(), secret])),
    }
    program = shutil.which("node")
    assert program is not None, "these tests need Node"
    arguments = ("webhooks.mjs", "verify", secret, json.dumps(sent))
    async with process(*arguments, program=program, cwd=node_project, **NO_PROXIES) as child:
        told = await outcome(child)
    assert told == {"event": json.loads(body), "refused": "InvalidWebhookSignatureError"}
