"""A version 1 worker, which runs one task at a time: answers in capitals. Needs `pip install websockets` (15 or newer)."""

import asyncio
import json
import os

from websockets.asyncio.client import connect, process_exception
from websockets.exceptions import ConnectionClosed

GATEWAY = os.environ.get("FAIRLANE_GATEWAY", "http://127.0.0.1:8080")
TOKEN = os.environ.get("FAIRLANE_WORKER_TOKEN")


def question(payload: dict) -> str:
    """Return the text of the last message, or the `prompt`."""
    content = payload["messages"][-1]["content"] if "messages" in payload else payload["prompt"]
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def not_connected(problem: Exception) -> Exception | None:
    """Print why. Return None to retry, or the error that ends the worker, such as a wrong token."""
    print(f"not connected: {problem}", flush=True)
    return process_exception(problem)


async def main() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    url = GATEWAY.rstrip("/").removesuffix("/ws").replace("http", "ws", 1) + "/ws"
    dial = connect(url, additional_headers=headers, process_exception=not_connected)
    async for socket in dial:  # reconnects, with growing delays
        print(f"connected to {url}", flush=True)
        try:
            async for message in socket:
                task = json.loads(message)
                end = {"type": "taskResult", "taskId": task["taskId"], "result": None, "error": None}
                try:
                    for word in question(task["payload"]).split():
                        chunk = {"type": "taskChunk", "taskId": task["taskId"], "delta": word.upper() + " "}
                        await socket.send(json.dumps(chunk))
                except (AttributeError, LookupError, TypeError) as problem:  # must not end the worker
                    end["error"] = f"I do not understand this request: {problem!r}"
                await socket.send(json.dumps(end))
        except ConnectionClosed as closed:
            print(f"connection lost: {closed}", flush=True)


asyncio.run(main())
