"""A streaming worker with the SDK: reconnects, drains on SIGTERM, several tasks at a time.

Run it with `python worker_sdk.py` or `fairlane worker run worker_sdk:worker --slots 8`. It reads
FAIRLANE_GATEWAY and FAIRLANE_WORKER_TOKEN.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from fairlane import Context, Delta, Task, TaskError, Usage, Worker

worker = Worker(slots=4)


@worker.handler(models=["shout"])
async def shout(task: Task, context: Context) -> AsyncIterator[str | Delta | Usage]:
    messages = task.payload.get("messages")
    content = messages[-1]["content"] if messages else task.payload.get("prompt")
    if isinstance(content, list):  # parts: texts, images
        content = " ".join(part.get("text", "") for part in content)
    if not content:
        raise TaskError("BAD_REQUEST", "There is nothing to shout.")
    words = content.split()
    for number, word in enumerate(words):
        await context.progress(pct=100 * number / len(words))
        await asyncio.sleep(0.02)  # a cancelled task ends here
        yield word.upper() + " "
    yield Delta(finish_reason="stop")
    yield Usage(input_tokens=len(words), output_tokens=len(words))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)  # the SDK logs its connection
    worker.run()
