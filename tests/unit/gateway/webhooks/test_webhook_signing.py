"""Signatures as others verify them, and bodies that are the same for each try."""

import json
import time

import openai
import pytest
import standardwebhooks

from fairlane.gateway.webhooks.events import EVENTS, TEST, body_of, delivery_id, event_id, headers, new_secret


def test_standard_webhooks_and_openai_verify_what_is_signed_with_either_of_two_secrets() -> None:
    old, new = new_secret(), new_secret()
    body = body_of("evt_1", "task.completed", "01-é", 1_700_000_000_123, "")
    sent = dict(headers("wh_1", int(time.time()), body, [new, old]))
    for secret in (old, new):
        assert standardwebhooks.Webhook(secret).verify(body.decode(), sent) == json.loads(body)
        event = openai.OpenAI(api_key="x", webhook_secret=secret).webhooks.unwrap(body, sent)
        assert event.id == "evt_1"
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(new_secret()).verify(body.decode(), sent)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        openai.OpenAI(api_key="x", webhook_secret=new_secret()).webhooks.unwrap(body, sent)


def test_what_is_old_is_refused() -> None:
    secret, body = new_secret(), b"{}"
    sent = dict(headers("wh_1", int(time.time()) - 3600, body, [secret]))
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(secret).verify("{}", sent)


def test_openais_own_events_are_read_as_theirs() -> None:
    secret = new_secret()
    client = openai.OpenAI(api_key="x", webhook_secret=secret)
    for event in EVENTS:
        if event.startswith("task."):
            continue
        body = body_of("evt_1", event, "resp_1", 1_700_000_000_123, "")
        read = client.webhooks.unwrap(body, dict(headers("wh_1", int(time.time()), body, [secret])))
        assert type(read).__name__.lower().startswith(event.partition(".")[0])
        assert (read.type, read.created_at, read.data.id) == (event, 1_700_000_000, "resp_1")


def test_ids_are_the_same_for_the_same_and_others_for_others() -> None:
    assert event_id("task.failed", "t") == event_id("task.failed", "t")
    assert len({event_id("task.failed", "t"), event_id("task.failed", "u"), event_id(TEST, "t")}) == 3
    event = event_id("task.failed", "t")
    assert delivery_id("hook_1", event) != delivery_id("hook_2", event)


def test_the_body_names_a_user_only_where_it_is_to() -> None:
    body = json.loads(body_of("evt_1", "task.failed", "t", 5999, "ann"))
    assert body == {
        "id": "evt_1",
        "object": "event",
        "created_at": 5,
        "type": "task.failed",
        "data": {"id": "t", "user": "ann"},
    }
