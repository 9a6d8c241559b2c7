"""Media of a simulated model: one small valid sample of each kind. Pure."""

import struct
from base64 import b64decode

from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.media import (
    CATEGORIES,
    Image,
    ImageRequest,
    Images,
    Moderation,
    ModerationRequest,
    Moderations,
    Segment,
    Transcript,
)

PCM = bytes(2 * 2400)
"""0.1 s of silence: 24 kHz, 16 bit, mono."""
WAV = (
    struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + len(PCM), b"WAVE", b"fmt ", 16, 1, 1, 24_000, 48_000, 2, 16)
    + struct.pack("<4sI", b"data", len(PCM))
    + PCM
)
MP3 = b"\xff\xf3\x84\xc4".ljust(192, b"\0") * 4
"""Frames of silence: MPEG 2, layer III, 64 kbit/s, 24 kHz, mono."""
PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel."""
MAX_IMAGES = 10
_FLAGGED = "this is vile"


def speech(response_format: str) -> list[bytes]:
    """Return silence in two pieces. Raise TaskError for formats other than `mp3`, `wav` and `pcm`."""
    samples = {"mp3": MP3, "wav": WAV, "pcm": PCM}
    if response_format not in samples:
        message = f"The simulated voice speaks mp3, wav and pcm, not {response_format[:20]}."
        raise TaskError("BAD_REQUEST", message)
    sample = samples[response_format]
    return [sample[:64], sample[64:]]


def transcript(text: str) -> Transcript:
    """Return a transcript with one segment of one second."""
    return Transcript(text, "english", 1.0, [Segment(0, 0.0, 1.0, text)])


def moderations(request: ModerationRequest) -> Moderations:
    """Return scores of 0; flag inputs that contain "this is vile"."""
    results = []
    for one in request.inputs[:1000]:
        scores = dict.fromkeys(CATEGORIES, 0.0)
        if _FLAGGED in str(one).lower():
            scores["harassment"] = 0.99
        results.append(Moderation.scored(scores))
    return Moderations(results)


def images(request: ImageRequest) -> Images:
    """Return as many images as were requested."""
    count = min(max(request.n or 1, 1), MAX_IMAGES)
    return Images([Image(b64_json=PNG) for _ in range(count)], size="1x1", output_format="png")
