"""A gateway with workers for audio, images and moderations: simulated ones, some of the SDK, and one in front of a server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.media_upstream import MediaUpstream, media_upstream
from tests.support.serving import DEADLINE_S, WORKER_TOKEN, Served, http_client, serving, until

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.settings import CallerKey
from fairlane.workers.adapters import PROVIDERS, SIMULATED, SimulateAdapter, Simulation
from fairlane.workers.sdk import Context, Result, Task, TaskError, Usage, Worker
from fairlane.workers.sdk.media import (
    IMAGE,
    SPEECH,
    TRANSCRIPTION,
    Audio,
    SpeechRequest,
    Transcript,
    TranscriptionRequest,
)
from fairlane.workers.tasktypes import MEDIA

from .stage import PATIENT

KEY = "a-key-for-media"
TEAM = CallerKey(id="team", sha256=digest(KEY), scopes=["admin"])
SOUND = b"RIFF\x24\x00\x00\x00WAVE" + bytes(range(256)) * 100
QUICK = Simulation(ttft_ms=0, tokens_per_second=0, tokens=24)
PIECES = [b"one", b"", b"\x00\x01\x02\x03", b"\xff" * 5000]


class Media:
    """What a test sees."""

    def __init__(self, served: Served, upstream: MediaUpstream) -> None:
        self.served = served
        self.upstream = upstream
        self.base_url = f"{served.url}/v1"
        self.seen: list[Any] = []
        """Payloads that reached handlers of the SDK."""
        self.speaking = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()

    def http(self, **options: Any) -> Any:
        return http_client(self.served.url, headers={"Authorization": f"Bearer {KEY}"}, **options)

    # ---- handlers ----------

    async def pieces(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Bytes, in pieces of odd lengths."""
        self.seen.append(SpeechRequest.of(task))
        for piece in PIECES:
            yield piece
        yield Usage(3, 40)

    async def whole(self, task: Task, _: Context) -> Audio:
        self.seen.append(SpeechRequest.of(task))
        return Audio(b"".join(PIECES), "audio/wav")

    async def slow(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """A piece, and another when it is allowed to."""
        try:
            yield b"first!"
            self.speaking.set()
            await self.go_on.wait()
            yield b"second"
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def hoarse(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Breaks off in the middle."""
        yield b"half of it"
        self.speaking.set()
        await self.go_on.wait()
        raise TaskError("UPSTREAM_ERROR", "The voice is gone", retryable=False)

    async def mute(self, task: Task, _: Context) -> AsyncIterator[Any]:
        raise TaskError("BAD_REQUEST", "No such voice")
        yield b""

    async def babble(self, task: Task, _: Context) -> str:
        return "this is not base64!"

    async def ear(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Words as they are heard."""
        heard = TranscriptionRequest.of(task)
        self.seen.append(heard)
        for word in ("One ", "two ", "drüi"):
            yield word
        yield Usage(details={"type": "duration", "seconds": 2.5})

    async def deaf(self, task: Task, _: Context) -> Transcript:
        """Hears words, and not when."""
        return Transcript("words")

    async def painter(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Makes one image."""
        self.seen.append(task.payload)
        yield Usage(4, 100)
        yield Result({"data": [{"b64_json": "V0hPTEU="}], "size": "8x8", "quality": "low"})

    def workers(self) -> list[Worker]:
        simulated = Worker("simulated", slots=8)
        simulated.handler(["sim", "omni-moderation-latest"], SIMULATED)(SimulateAdapter(QUICK))
        own = Worker("own", slots=8)
        for name in ("pieces", "whole", "slow", "hoarse", "mute", "babble"):
            own.handler([name], [SPEECH])(getattr(self, name))
        own.handler(["ear"], [TRANSCRIPTION])(self.ear)
        own.handler(["deaf"], [TRANSCRIPTION])(self.deaf)
        own.handler(["painter"], [IMAGE])(self.painter)
        chat = Worker("chat", slots=2)

        @chat.handler(["chat-only"])
        async def answer(task: Task, context: Context) -> str:
            raise AssertionError("it was given a task of media")

        far = Worker("far", slots=4)
        PROVIDERS["openai"].adapter(
            base_url=self.upstream.url, models={"far": "theirs"}, api_key="sk-theirs", task_types=MEDIA
        ).attach(far)
        workers = [simulated, own, chat, far]
        for worker in workers:
            worker.gateway, worker.token = self.served.url, WORKER_TOKEN
        return workers


@contextlib.asynccontextmanager
async def media_staged(redis_url: str, tmp_path: Path, **settings: Any) -> AsyncIterator[Media]:
    """The gateway and its workers; `KEY` may do everything."""
    settings.setdefault("keys", [TEAM])
    async with serving(redis_url, tmp_path, **PATIENT, **settings) as served, media_behind(served) as media:
        yield media


@contextlib.asynccontextmanager
async def media_behind(served: Served) -> AsyncIterator[Media]:
    """Those workers, as the only ones of a gateway."""
    async with media_upstream() as upstream:
        media = Media(served, upstream)
        stop = asyncio.Event()
        workers = media.workers()
        working = [asyncio.create_task(worker.serve(stop, stop)) for worker in workers]
        try:
            wanted = {name for worker in workers for name in worker.registry.models}
            async with media.http() as http:

                async def there() -> bool:
                    rows = (await http.get("/v1/models")).json()["data"]
                    return wanted <= {row["id"] for row in rows}

                await until(lambda: len(served.gateway.dispatcher.pool) == len(workers), "the workers")
                await until(there, "their models")
            yield media
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*working)
