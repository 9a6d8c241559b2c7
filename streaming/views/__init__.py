"""Every client surface as a pure function of one task's event log: no clock, no Redis, no sockets.

Native stream: `NativeStreamView`. Native JSON and polls: `ResultView`. OpenAI: `ChatStreamView` and `ChatBodyView`,
`CompletionStreamView` and `CompletionBodyView`, `EmbeddingBodyView`. `ResponsesStreamView` and `ResponsesBodyView`.
Anthropic: `MessagesStreamView` and `MessagesBodyView`.
"""

from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.completions import CompletionBodyView, CompletionStreamView
from fairlane.streaming.views.embeddings import EmbeddingBodyView
from fairlane.streaming.views.messages import MessagesBodyView, MessagesStreamView
from fairlane.streaming.views.native import NativeStreamView
from fairlane.streaming.views.responses import ResponsesBodyView, ResponsesStreamView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo

__all__ = [
    "ChatBodyView",
    "ChatStreamView",
    "CompletionBodyView",
    "CompletionStreamView",
    "EmbeddingBodyView",
    "MessagesBodyView",
    "MessagesStreamView",
    "NativeStreamView",
    "ResponsesBodyView",
    "ResponsesStreamView",
    "ResultView",
    "TaskInfo",
]
