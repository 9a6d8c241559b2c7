"""Every client surface as a pure fold over one task's event log: no clock, no Redis, no sockets.

Native stream: `NativeView`. Native JSON and polls: `ResultFold`. OpenAI: `ChatStreamView` and `ChatFold`,
`CompletionStreamView` and `CompletionFold`, `EmbeddingFold`.
"""

from fairlane.streaming.views.chat import ChatFold, ChatStreamView
from fairlane.streaming.views.completions import CompletionFold, CompletionStreamView
from fairlane.streaming.views.embeddings import EmbeddingFold
from fairlane.streaming.views.native import NativeView
from fairlane.streaming.views.result import ResultFold
from fairlane.streaming.views.task import TaskInfo

__all__ = [
    "ChatFold",
    "ChatStreamView",
    "CompletionFold",
    "CompletionStreamView",
    "EmbeddingFold",
    "NativeView",
    "ResultFold",
    "TaskInfo",
]
