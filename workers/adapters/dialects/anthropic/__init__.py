"""Anthropic's Messages API."""

from fairlane.workers.adapters.dialects.anthropic.dialect import AnthropicDialect

__all__ = ["AnthropicDialect"]
