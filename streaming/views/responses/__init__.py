"""OpenAI's Responses as folds over a task's log."""

from fairlane.streaming.views.responses.response import response_id, task_of_item, task_of_response
from fairlane.streaming.views.responses.stream import ResponsesBodyView, ResponsesStreamView

__all__ = ["ResponsesBodyView", "ResponsesStreamView", "response_id", "task_of_item", "task_of_response"]
