"""Webhooks: signed requests that notify clients when their tasks, responses and batches end."""
