"""Overrides of queues, models and routes: what operators do with them, and how a replica keeps up with them."""
