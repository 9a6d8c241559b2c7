"""OpenAI's answers that are no chat: transcripts, speech, images, moderations. Folds over a task's log, as all views are.

Their bodies are of more types than JSON: `typed` is a body with its type before it, as one text of bytes that all who ask for the
same task can share.
"""

from fairlane.streaming.views.media.images import ImageBodyView, ImageStreamView, ModerationBodyView
from fairlane.streaming.views.media.speech import CutShort, SpeechBytesView, SpeechEventsView, type_of
from fairlane.streaming.views.media.transcripts import TranscriptBodyView, TranscriptStreamView
from fairlane.streaming.views.media.typed import MediaBodyView, split_typed

__all__ = [
    "CutShort",
    "ImageBodyView",
    "ImageStreamView",
    "MediaBodyView",
    "ModerationBodyView",
    "SpeechBytesView",
    "SpeechEventsView",
    "TranscriptBodyView",
    "TranscriptStreamView",
    "split_typed",
    "type_of",
]
