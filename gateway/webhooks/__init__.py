"""Webhooks: callers are told of ends by requests to addresses of theirs."""
