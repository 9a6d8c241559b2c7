"""A worker in fifteen lines: version 1 of the protocol, a task at a time. Needs `pip install websockets`."""

import asyncio
import json
import os

from websockets.asyncio.client import connect

GATEWAY = os.environ.get("FAIRLANE_GATEWAY", "http://127.0.0.1:8080")
TOKEN = os.environ.get("FAIRLANE_WORKER_TOKEN")


async def main() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    url = GATEWAY.rstrip("/").removesuffix("/ws").replace("http", "ws", 1) + "/ws"
    async with connect(url, additional_headers=headers) as socket:
        async for message in socket:
            task = json.loads(message)
            words = [m["content"] for m in task["payload"].get("messages", [])][-1:]
            for word in " ".join(words).split():
                chunk = {"type": "taskChunk", "taskId": task["taskId"], "delta": word.upper() + " "}
                await socket.send(json.dumps(chunk))
            result = {"type": "taskResult", "taskId": task["taskId"], "result": None, "error": None}
            await socket.send(json.dumps(result))


asyncio.run(main())
