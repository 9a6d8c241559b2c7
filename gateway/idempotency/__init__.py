"""Idempotency keys: the same key names the same task."""
