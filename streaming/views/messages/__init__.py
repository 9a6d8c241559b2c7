"""Anthropic's Messages as folds over a task's log."""

from fairlane.streaming.views.messages.message import PING, MessagesBodyView, MessagesStreamView, error_body

__all__ = ["PING", "MessagesBodyView", "MessagesStreamView", "error_body"]
