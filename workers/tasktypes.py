"""Types of tasks, and which worker takes which. Pure.

A worker that names no types takes any but those of media, which it must name. (A worker that was written for chat would fail at
a file, and a caller could so make a good worker look broken.) `"*"` among its types stands for any of the others.
"""

from collections.abc import Collection

ANY_TYPE = "*"

TEXT = ("openaiLike", "openaiCompletion", "openaiEmbedding")
"""Of OpenAI's calls for texts."""
MODERATION = "openaiModeration"
TRANSCRIPTION = "openaiTranscription"
TRANSLATION = "openaiTranslation"
SPEECH = "openaiSpeech"
IMAGE = "openaiImage"
IMAGE_EDIT = "openaiImageEdit"
IMAGE_VARIATION = "openaiImageVariation"

MEDIA: dict[str, str] = {
    MODERATION: "moderations",
    TRANSCRIPTION: "transcriptions of audio",
    TRANSLATION: "translations of audio",
    SPEECH: "speech",
    IMAGE: "images",
    IMAGE_EDIT: "edits of images",
    IMAGE_VARIATION: "variations of images",
}
"""The types that a worker must name, and what they make, as a sentence says it."""
FILES = frozenset({"file", "image", "mask", "markup"})
"""Members of their payloads that are files, or lists of files."""


def takes(task_types: Collection[str] | None, task_type: str) -> bool:
    """Whether a worker of these types (None: it names none) takes a task of this one."""
    if task_types is None:
        return task_type not in MEDIA
    return task_type in task_types or (ANY_TYPE in task_types and task_type not in MEDIA)


def covers(task_types: Collection[str] | None, others: Collection[str] | None) -> bool:
    """Whether a worker of these types takes all that one of those other types takes."""
    mine = {ANY_TYPE} if task_types is None else task_types
    return all(
        (other == ANY_TYPE and ANY_TYPE in mine) or takes(mine, other)
        for other in ([ANY_TYPE] if others is None else others)
    )
