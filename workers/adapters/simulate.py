"""Behaves like a model of a given speed, with accidents on demand. One process runs hundreds of tasks."""

import asyncio
import os
import random
import re
import struct
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from enum import StrEnum

from fairlane.workers.adapters.shapes import completion, embeddings, max_tokens_of, prompt_of, usage_for
from fairlane.workers.sdk import Context, Delta, Result, Task, TaskError, Usage
from fairlane.workers.sdk.media import (
    CATEGORIES,
    MODERATION,
    SPEECH,
    TRANSCRIPTION,
    TRANSLATION,
    Image,
    ImageRequest,
    Images,
    Moderation,
    ModerationRequest,
    Moderations,
    Segment,
    SpeechRequest,
    Transcript,
    TranscriptionRequest,
)
from fairlane.workers.tasktypes import ANY_TYPE, MEDIA

SIMULATED = (ANY_TYPE, *MEDIA)
"""Types of tasks that a simulated model takes: all."""
TOKENS_OF_IMAGE = 1056

_ANSWER = """\
*A simulated answer: no model wrote it.*

A fair queue serves many users in parallel:

1. **Take turns.** Each user is next in turn.
2. **Share by weight.** Paid tiers get more.
3. **Starve none.** Each request is served.

In a few lines:

```python
for user in waiting_users():
    task = next_task(user)
    run(task)
```

That is all there is to it, so ask me again!

"""
"""It reads well, ends its code, and has as many tokens as a task by default."""
_TOKENS: list[str] = re.findall(r"\S+\s+", _ANSWER)


class Accident(StrEnum):
    """How a task fails: before output, after half of it, by never answering, or with the whole process."""

    ERROR = "error"
    MIDWAY = "midway"
    HANG = "hang"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Simulation:
    """The model to pretend. What happens to a task depends on `seed` and its id alone.

    `ttft_ms` to the first token, then `tokens_per_second` (0: as fast as possible), `tokens` long (a
    payload's own limit shortens that); `jitter` varies the three by up to this share. A share `failure_rate`
    of the tasks meets an `accident` and fails with `failure_code`.
    """

    seed: int = 0
    ttft_ms: float = 200.0
    tokens_per_second: float = 50.0
    tokens: int = 64
    jitter: float = 0.0
    failure_rate: float = 0.0
    failure_code: str = "UPSTREAM_ERROR"
    accident: Accident = Accident.ERROR

    def __post_init__(self) -> None:
        if min(self.ttft_ms, self.tokens_per_second, self.tokens) < 0:
            raise ValueError("Times, rates and lengths of a simulation are not negative.")
        if not (0 <= self.jitter <= 1 and 0 <= self.failure_rate <= 1):
            raise ValueError("jitter and failure_rate are shares between 0 and 1.")


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen to one task."""

    ttft_s: float
    seconds_per_token: float
    tokens: int
    finish_reason: str
    accident: Accident | None

    def token(self, index: int) -> str:
        return _TOKENS[index % len(_TOKENS)]

    @property
    def text(self) -> str:
        return "".join(self.token(index) for index in range(self.tokens))


def plan(simulation: Simulation, task_id: str, max_tokens: int | None) -> Plan:
    """Decide a task's fate. Pure: the same arguments give the same plan, in any process."""
    rng = random.Random(f"{simulation.seed}:{task_id}")  # noqa: S311 (must be repeatable)

    def vary(value: float) -> float:
        return value * (1 + simulation.jitter * rng.uniform(-1, 1))

    ttft_s = vary(simulation.ttft_ms) / 1000
    rate = vary(simulation.tokens_per_second)
    tokens = round(vary(simulation.tokens))
    is_cut = max_tokens is not None and max_tokens < tokens
    return Plan(
        ttft_s=ttft_s,
        seconds_per_token=1 / rate if rate > 0 else 0.0,
        tokens=max_tokens if is_cut and max_tokens is not None else tokens,
        finish_reason="length" if is_cut else "stop",
        accident=simulation.accident if rng.random() < simulation.failure_rate else None,
    )


class SimulateAdapter:
    """A handler that follows a `Simulation`."""

    def __init__(self, simulation: Simulation | None = None) -> None:
        self.simulation = simulation or Simulation()

    async def __call__(
        self, task: Task, context: Context
    ) -> AsyncGenerator[str | bytes | Delta | Usage | Result, None]:
        """Run one task: tokens when it streams, else the completion when its time is over."""
        fate = plan(self.simulation, task.task_id, max_tokens_of(task.payload))
        loop = asyncio.get_running_loop()
        first_at = loop.time() + fate.ttft_s
        prompt = prompt_of(task.payload) or ""
        if fate.accident is Accident.EXIT:
            await _until(first_at)
            os._exit(70)  # as a crash would: no goodbye
        if fate.accident is Accident.HANG:
            await context.cancelled
        if fate.accident is Accident.ERROR:
            await _until(first_at)
            raise self._failure()
        if task.type == "openaiEmbedding" or (task.type in MEDIA and task.type != TRANSCRIPTION):
            await _until(first_at)
            for item in self._without_tokens(task, fate):
                yield item
            if fate.accident is Accident.MIDWAY:
                raise self._failure()
            return
        heard = TranscriptionRequest.of(task) if task.type == TRANSCRIPTION else None
        end = fate.tokens // 2 if fate.accident is Accident.MIDWAY else fate.tokens
        if task.stream:
            for index in range(end):
                if (at := first_at + index * fate.seconds_per_token) > loop.time():
                    await _until(at)
                yield fate.token(index)
        else:
            await _until(first_at + max(0, end - 1) * fate.seconds_per_token)
        usage = usage_for(prompt, end)
        if heard is not None:
            transcribed = transcript(fate.text)
            usage = Usage(details={"type": "duration", "seconds": transcribed.duration})
        yield usage
        if fate.accident is Accident.MIDWAY:
            raise self._failure()
        if heard is not None:
            if not task.stream:
                yield Result(transcribed)
        elif task.stream:
            yield Delta(finish_reason=fate.finish_reason)
        else:
            yield Result(completion(task, fate.text, fate.finish_reason, usage))

    def _without_tokens(self, task: Task, fate: Plan) -> Iterator[bytes | Usage | Result]:
        """Embeddings, speech, images, moderations, a translation: their usage is reported, and only speech comes in pieces."""
        if task.type == "openaiEmbedding":
            yield usage_for(prompt_of(task.payload) or "", 0)
            yield Result(embeddings(task))
        elif task.type == SPEECH:
            asked = SpeechRequest.of(task)
            yield usage_for(asked.input, 0)
            pieces = speech(asked.response_format)
            yield from pieces[:1] if fate.accident is Accident.MIDWAY else pieces
        elif task.type == MODERATION:
            yield Result(moderations(ModerationRequest.of(task)))
        elif task.type == TRANSLATION:
            TranscriptionRequest.of(task)
            transcribed = transcript(fate.text)
            yield Usage(details={"type": "duration", "seconds": transcribed.duration})
            yield Result(transcribed)
        else:
            wanted = ImageRequest.of(task)
            made = images(wanted)
            yield usage_for(wanted.prompt, TOKENS_OF_IMAGE * len(made.data))
            yield Result(made)

    def _failure(self) -> TaskError:
        return TaskError(self.simulation.failure_code, "The simulated worker fails this task.")


async def _until(moment: float) -> None:
    """Return at a moment of the event loop's time."""
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


# ---- media: one small valid sample of each kind ----------

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
