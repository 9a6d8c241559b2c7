"""Requests of Anthropic's Messages API as requests of chat. Pure."""

from fairlane.gateway.calls.messages.request import Asked, chat_of, chat_steps, made

__all__ = ["Asked", "chat_of", "chat_steps", "made"]
