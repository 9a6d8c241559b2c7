"""Idempotency keys, as callers meet them."""
