"""Anthropic's Messages as folds over a task's log."""

from fairlane.streaming.views.messages.message import MessagesBodyView, MessagesStreamView, error_body

__all__ = ["MessagesBodyView", "MessagesStreamView", "error_body"]
