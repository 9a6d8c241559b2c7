"""Media that nobody made: tones, silence, squares of one colour, judgements that depend on the input alone. Pure, and cheap."""

import functools
import hashlib
import math
import struct
import zlib
from collections.abc import Iterator

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
    unfinished,
)
from fairlane.workers.sdk.values import Delta

RATE = 24_000
"""Samples a second: of OpenAI's `pcm`, too."""
WORD_S = 0.3
MOST_WORDS = 200
_TONES = (220.0, 247.0, 262.0, 294.0, 330.0, 349.0, 392.0)
_MP3_FRAME = b"\xff\xf3\x84\xc4".ljust(192, b"\0")
"""24 ms of silence: MPEG 2, layer III, 64 kbit/s, 24 kHz, mono."""
_MP3_FRAME_S = 0.024
MOST_SIDE = 512
"""Of an image, pixels."""
MOST_IMAGES = 10
MOST_SKETCHES = 3
_WORDS_OF_SEGMENT = 8
_NEVER = "this is vile"
"""What a text says that is to be flagged."""


def speech(text: str, response_format: str) -> Iterator[bytes]:
    """A tone for each word, as `wav` or `pcm`; as `mp3` silence of that length. Raises `TaskError` for other formats."""
    words = text.split()[:MOST_WORDS] or [""]
    if response_format == "mp3":
        for _ in words:
            yield _MP3_FRAME * round(WORD_S / _MP3_FRAME_S)
        return
    if response_format not in ("wav", "pcm"):
        raise TaskError(
            "BAD_REQUEST", f"The simulated voice speaks mp3, wav and pcm, not {response_format[:20]}."
        )
    if response_format == "wav":
        size = 2 * round(RATE * WORD_S) * len(words)
        yield struct.pack(
            "<4sI4s4sIHHIIHH4sI",
            b"RIFF",
            36 + size,
            b"WAVE",
            b"fmt ",
            16,
            1,
            1,
            RATE,
            2 * RATE,
            2,
            16,
            b"data",
            size,
        )
    for word in words:
        yield _tone(_TONES[_number(word) % len(_TONES)])


@functools.lru_cache(16)
def _tone(hertz: float) -> bytes:
    count = round(RATE * WORD_S)
    step = 2 * math.pi * hertz / RATE
    # quiet at both ends, so that tones do not click
    samples = [int(6000 * math.sin(at * step) * math.sin(math.pi * at / count)) for at in range(count)]
    return struct.pack(f"<{count}h", *samples)


def transcript(tokens: list[str], audio_bytes: int) -> Transcript:
    """A transcript of these tokens, with a segment for each few of them."""
    duration = round(max(audio_bytes / 32_000, 0.1), 3)
    pieces = [tokens[at : at + _WORDS_OF_SEGMENT] for at in range(0, len(tokens), _WORDS_OF_SEGMENT)] or [[]]
    length = duration / len(pieces)
    segments = [
        Segment(number, round(number * length, 3), round((number + 1) * length, 3), " ".join(piece))
        for number, piece in enumerate(pieces)
    ]
    return Transcript(" ".join(tokens), "english", duration, segments)


def moderations(request: ModerationRequest) -> Moderations:
    """Low scores that depend on each input alone; one that says `_NEVER` is flagged."""
    results = []
    for one in request.inputs[:1000]:
        text = str(one)
        scores = {name: _number(f"{name} {text}") % 1000 / 100_000 for name in CATEGORIES}
        if _NEVER in text.lower():
            scores["harassment"] = 0.99
        results.append(Moderation.scored(scores))
    return Moderations(results)


def images(request: ImageRequest) -> Images:
    """Squares whose colours depend on the prompt, or on the image that came."""
    width, height = _size(request.size)
    seed = _seed(request)
    made = [
        Image(b64_json=png(width, height, _number(f"{number} {seed}")))
        for number in range(min(max(request.n or 1, 1), MOST_IMAGES))
    ]
    return Images(made, size=f"{width}x{height}", output_format="png")


def sketches(request: ImageRequest) -> Iterator[Delta]:
    """The first of them as a caller who streams wants to see it unfinished: smaller squares of its colour."""
    count = min(max(request.partial_images or 0, 0), MOST_SKETCHES) if request.stream else 0
    width, height = _size(request.size)
    colour = _number(f"0 {_seed(request)}")
    for index in range(count):
        share = (index + 1) / (count + 1)
        yield unfinished(png(max(round(width * share), 1), max(round(height * share), 1), colour), index)


def _seed(request: ImageRequest) -> str:
    return request.prompt + "".join(hashlib.sha256(upload.data).hexdigest() for upload in request.images)


def png(width: int, height: int, colour: int) -> bytes:
    """A PNG of one colour, of which the last three bytes of a number are red, green and blue."""
    row = b"\0" + (colour & 0xFFFFFF).to_bytes(3, "big") * width
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(row * height, 1)), (b"IEND", b""))
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _size(asked: str | None) -> tuple[int, int]:
    width, _, height = (asked or "").partition("x")
    if not (width.isdecimal() and height.isdecimal() and len(width) <= 5 and len(height) <= 5):
        return 256, 256
    return min(max(int(width), 1), MOST_SIDE), min(max(int(height), 1), MOST_SIDE)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:6], "big")
