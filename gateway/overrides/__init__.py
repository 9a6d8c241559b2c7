"""Overrides of queues, models and routes at run time."""
