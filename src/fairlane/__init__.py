"""Fairlane: an LLM gateway that queues instead of refusing."""

__version__ = "0.1.0"
