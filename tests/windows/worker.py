"""A worker as a process: sends a request to the target for each task, and reports when the request left."""

import asyncio
import signal
import sys

from tests.windows.wire import Line, post

from fairlane.workers.sdk import Context, Task, TaskError, Worker

SLOTS = 250


class Target:
    """Connections to the target, one for each running task."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Line] = []

    async def ask(self, user: str, context: Context) -> str:
        """Return its answer."""
        line = self._free.pop() if self._free else await Line.open(self._port)
        await line.send(post("/call", b"", user))
        context.sent()
        _, body = await line.answer()
        self._free.append(line)
        return body.decode()


def make_worker(gateway: str, model: str, port: int) -> Worker:
    """Return a worker for this gateway and model."""
    worker = Worker("asks-the-target", gateway=gateway, slots=SLOTS)
    target = Target(port)

    @worker.handler(models=[model])
    async def call(task: Task, context: Context) -> str:
        try:
            return await target.ask(task.payload["user"], context)
        except (OSError, EOFError) as error:
            raise TaskError("UPSTREAM_ERROR", f"The target broke off: {error}") from error

    return worker


async def main(gateway: str, model: str, port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await make_worker(gateway, model, port).serve(stop, stop)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
