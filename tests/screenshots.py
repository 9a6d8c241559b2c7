"""Takes the pictures of the web pages that the documents show: `make screenshots` writes docs/images/<shot>-<look>.png, and the
animated docs/images/burst-<look>.webp.

Each shot has a stage of its own: a gateway in this process with a private Redis, and workers that say what the scene wants. To
add a page, write its scene and name it in SHOTS. The burst is filmed on what `make run` starts.
"""

import asyncio
import contextlib
import io
import itertools
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image
from playwright.async_api import Browser, FloatRect, Page, expect
from tests.integration.web.conftest import DEADLINE_MS
from tests.support.browser import chromium
from tests.support.prepared import command
from tests.support.rawworkers import RawWorker
from tests.support.servers import free_port, running_server
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.web.history.buckets import Bucket, ModelCounts
from fairlane.web.history.history import BUCKET_MS, HOUR_MS

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
}
LOAD = [
    ("acme", "paid", "stream", "deepseek-chat", 30),
    ("globex", "paid", "batch", "qwen3-32b", 110),
    ("ann", "free", "stream", "deepseek-chat", 40),
    ("ben", "free", "batch", "qwen3-32b", 160),
    ("zoë", "free", "batch", "llama-3.1-8b", 3),
]


async def operators_view(page: Page, talk: Talk) -> None:
    """An hour of load with a provider's bad ten minutes, and what waits and runs now."""
    await write_an_hour(talk)
    await until(lambda: whole_hour(talk), "the gateway to know of the hour")
    await talk.http.patch(
        "/api/admin/models/deepseek-chat", json={"concurrency": 8, "requests_per_minute": 600}
    )
    await talk.http.patch("/api/admin/queues/free_batch", json={"weight": 2})
    await talk.http.patch("/api/admin/queues/free_vision", json={"paused": True})
    workers = [
        (["deepseek-chat"], 12, "deepseek adapter"),
        (["qwen3-32b"], 6, "gpu-1"),
        (["qwen3-32b", "llama-3.1-8b"], 6, "gpu-2"),
    ]
    for models, slots, name in workers:
        talk.later(work_for_long(talk, models, slots, name))
    await talk.workers(len(workers))
    for user, tier, mode, model, count in LOAD:
        headers = {"X-Fairlane-User": user.encode(), "X-Fairlane-Tier": tier.encode()}
        body = {"model": model, "async": True, "mode": mode, "messages": [{"role": "user", "content": "Hi"}]}
        for _ in range(count):
            await talk.http.post("/api/openai", json=body, headers=headers)
    await asyncio.sleep(6)  # so that there is something to share
    await until(lambda: told_of_waiting(talk), "the history to know that tasks wait")
    await page.reload()
    await expect(page.locator(".plot canvas")).to_have_count(3)
    await expect(page.locator("#queues")).to_contain_text("%")


async def whole_hour(talk: Talk) -> bool:
    """Has the gateway read all of `write_an_hour`? It looks again when another bucket is over."""
    history = (await talk.http.get("/api/admin/timeseries")).json()
    return all(history["completed"][1:-2])


async def told_of_waiting(talk: Talk) -> bool:
    """Does what the gateway knows of the last seconds hold tasks that wait?"""
    return (await talk.http.get("/api/admin/timeseries")).json()["waiting"][-1] > 0


async def work_for_long(talk: Talk, models: list[str], slots: int, name: str) -> None:
    """A worker that takes what comes; each task takes a second or so."""

    async def one(worker: RawWorker, task: dict[str, Any]) -> None:
        await asyncio.sleep(0.5 + hash(task["taskId"]) % 1000 / 1000)
        await worker.answer(task, {"content": "ok"}, usage={"inputTokens": 40, "outputTokens": 200})

    async with talk.worker2(models, slots=slots, name=name) as worker, asyncio.TaskGroup() as group:
        while True:
            task = await worker.recv(None)
            if task["type"] == "task":
                await worker.ack(task)
                group.create_task(one(worker, task))


async def write_an_hour(talk: Talk) -> None:
    """What another replica would have told of the last hour."""
    gateway = talk.served.gateway
    rng = random.Random(4)
    now = time.time_ns() // 1_000_000 // BUCKET_MS * BUCKET_MS
    for number in range(HOUR_MS // BUCKET_MS):
        trouble = 200 < number < 260
        count = int(rng.gauss(180 + 75 * math.sin(number / 50), 12))
        bucket = Bucket(accepted=count + 2, cancelled=rng.choice([0, 0, 1]))
        bucket.failures = {"UPSTREAM_ERROR": rng.randrange(9)} if trouble else {}
        bucket.failures |= {"CONTEXT_LENGTH": 1} if rng.random() < 0.08 else {}
        bucket.rejections = {"full": rng.randrange(12)} if trouble and number > 230 else {}
        bucket.completed = count - sum(bucket.failures.values())
        bucket.waiting = max(round(rng.gauss(40, 6) + (3 * (number - 200) if trouble else 0)), 0)
        ended = {
            "qwen3-32b": count // 2,
            "llama-3.1-8b": count // 4,
            "deepseek-chat": count - count // 2 - count // 4,
        }
        bucket.models = {model: ModelCounts(n, n, output_tokens=180 * n) for model, n in ended.items()}
        for _ in range(count):
            wait = rng.lognormvariate(7.2 if trouble else 5.5, 0.8)
            first = wait + rng.lognormvariate(5.5, 0.5)
            for sketch, value in (
                (bucket.wait, wait),
                (bucket.first, first),
                (bucket.total, first + rng.lognormvariate(7, 0.6)),
            ):
                sketch.add(value)
        at = now - ((HOUR_MS // BUCKET_MS) - number) * BUCKET_MS
        fields = ("at", at, "bucket", msgspec.json.encode(bucket))
        await gateway.link.command("XADD", gateway.keys("history"), "*", *fields)


@dataclass(frozen=True)
class Shot:
    """One page in one state. `scene` brings it there."""

    name: str
    path: str
    scene: Callable[[Page, Talk], Awaitable[None]]
    looks: Sequence[str] = tuple(LOOKS)
    settings: Mapping[str, Any] = field(default_factory=dict)


SHOTS = [Shot("dashboard", "/dashboard", operators_view)]


async def take(shots: Sequence[Shot]) -> None:
    """Take all pictures of these shots."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    async with chromium() as browser:
        for shot in shots:
            for look in shot.looks:
                with running_server() as redis, tempfile.TemporaryDirectory() as folder:
                    async with talking(redis.url, Path(folder), **shot.settings) as talk:
                        context = await browser.new_context(**LOOKS[look], locale="en-GB")
                        page = await context.new_page()
                        page.set_default_timeout(DEADLINE_MS)
                        await page.goto(talk.served.url + shot.path)
                        await shot.scene(page, talk)
                        await page.mouse.move(0, 0)
                        await asyncio.sleep(0.5)  # let the last frame be drawn
                        await page.screenshot(path=IMAGES / f"{shot.name}-{look}.png", full_page=True)
                        await context.close()
                print(f"{shot.name}-{look}.png")


FILM_VIEW: FloatRect = {"x": 0, "y": 216, "width": 1180, "height": 784}
"""The form and the chart; the page's head above them and the code below are left out."""
FRAME_S = 0.16
LAST_FRAME_S = 4.0


@contextlib.contextmanager
def demo() -> Iterator[str]:
    """Yield the address of what `make run` starts."""
    with tempfile.TemporaryDirectory() as folder:
        words = command("demo", "--port", str(free_port()))
        with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout
                yield child.stdout.readline().split()[3]
            finally:
                child.send_signal(signal.SIGINT)
                child.wait(30)


async def film(browser: Browser, look: str) -> None:
    """Film a burst from its first task to its last: a user who sends forty, and two others who come after them with eight."""
    options = {**LOOKS[look], "viewport": {"width": 1180, "height": 1000}}
    frames: list[tuple[float, bytes]] = []
    with demo() as url:
        context = await browser.new_context(**options, locale="en-GB")
        page = await context.new_page()
        await page.goto(url)
        await page.locator("#tabs label", has_text="Burst").click()
        await page.locator("#burst-model option[value=demo-fast]").wait_for(state="attached")
        await page.locator("#burst-model").select_option("demo-fast")
        await page.locator("#burst-tokens").fill("64")
        for number, count in enumerate((40, 8, 8)):
            await page.locator(f"#burst-count-{number}").fill(str(count))
        await page.locator("#burst-send").click()
        await page.mouse.move(0, 0)
        ended = page.locator("#burst-progress", has_text="56 of 56 ended")
        while not frames or not await ended.is_visible():
            began = time.monotonic()
            frames.append((began, await page.screenshot(clip=FILM_VIEW)))
            await asyncio.sleep(max(0.0, began + FRAME_S - time.monotonic()))
        await asyncio.sleep(0.5)  # let the last frame be drawn
        frames.append((time.monotonic(), await page.screenshot(clip=FILM_VIEW)))
        await context.close()
    times = [*(at for at, _ in frames), frames[-1][0] + LAST_FRAME_S]
    lasts = [round(1000 * (after - at)) for at, after in itertools.pairwise(times)]
    first, *others = (Image.open(io.BytesIO(picture)).convert("RGB") for _, picture in frames)
    name = f"burst-{look}.webp"
    first.save(
        IMAGES / name, save_all=True, append_images=others, duration=lasts, loop=0, lossless=True, method=6
    )
    print(name, f"{(IMAGES / name).stat().st_size / 1024:.0f} KiB")


async def main(wanted: Sequence[str]) -> None:
    """Take those pictures; all of them if none is named."""
    await take([shot for shot in SHOTS if not wanted or shot.name in wanted])
    if not wanted or "burst" in wanted:
        async with chromium() as browser:
            for look in LOOKS:
                await film(browser, look)


if __name__ == "__main__":
    expect.set_options(timeout=DEADLINE_MS)
    asyncio.run(main(sys.argv[1:]))
