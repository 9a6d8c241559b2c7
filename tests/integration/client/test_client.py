"""The client for pages and Node: its own tests by `node --test`, its types, and that both fit what the gateway says."""

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.workers_sdk.sdk_bench import serving
from tests.support.node import installed
from tests.support.processes import NO_PROXIES, output_of
from tests.support.proxy import Proxy, Reader, Writer
from tests.support.serving import WORKER_TOKEN, until
from tests.support.talk import Talk, talking

import fairlane
from fairlane.gateway.api import events
from fairlane.workers.sdk import Context, Task, TaskError, Usage, Worker

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[3]
CLIENT = REPOSITORY / "web" / "client"
HERE = Path(__file__).parent
WORDS = [
    f"{word} "
    for word in ["so", "it", "was", "–", "naïve", "😀", "and", "長い,", "over", "and", "over", "again"]
] * 5


async def node(*arguments: str, cwd: Path, **environment: str) -> str:
    """What Node prints; fails with it when it fails."""
    program = shutil.which("node")
    assert program is not None, "this test needs Node"
    return await output_of(*arguments, program=program, cwd=cwd, **NO_PROXIES, **environment)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that has installed the client."""
    folder = tmp_path / "program"
    (folder / "node_modules").mkdir(parents=True)
    (folder / "node_modules" / "fairlane-client").symlink_to(CLIENT)
    for file in HERE.glob("*.mjs"):
        shutil.copy(file, folder)
    return folder


async def test_it_reads_folds_retries_and_gives_up_as_it_says(program: Path) -> None:
    assert "# fail 0" in await node("--test", "--test-reporter=tap", "units.test.mjs", cwd=program)


class Cutting(Proxy):
    """Cuts each connection after so many bytes of what the gateway sends, more each time; the head of an answer always passes."""

    async def pass_on(self, reader: Reader, writer: Writer, link: set[str], *, sends: bool) -> None:
        if sends:
            await super().pass_on(reader, writer, link, sends=sends)
            return
        left = 1500 + 211 * self.connections
        while left and (data := await reader.read(left)):
            left -= len(data)
            writer.write(data)
            await writer.drain()


def cast(gateway: str) -> Worker:
    worker = Worker("cast", gateway=gateway, token=WORKER_TOKEN)

    @worker.handler(["story"])
    async def story(task: Task, _: Context) -> AsyncIterator[Any]:
        for word in WORDS:
            await asyncio.sleep(0.005)
            yield word
        yield Usage(5, 60)

    @worker.handler(["whole"])
    async def whole(task: Task, _: Context) -> dict[str, Any]:
        assert not task.payload["stream"]
        message = {"role": "assistant", "content": "In one piece"}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    @worker.handler(["resize"], ["resize"])
    async def resize(task: Task, context: Context) -> dict[str, Any]:
        await context.progress(stage={"name": "scale", "index": 1, "of": 2, "status": "running"})
        return {"width": 2 * task.payload["width"]}

    @worker.handler(["steps"])
    async def steps(task: Task, context: Context) -> None:
        while True:
            await context.progress(pct=50, note="half")
            await asyncio.sleep(0.05)

    @worker.handler(["endless"])
    async def endless(task: Task, _: Context) -> AsyncIterator[str]:
        while True:
            yield "more "
            await asyncio.sleep(0.05)

    @worker.handler(["fails"])
    async def fails(task: Task, _: Context) -> None:
        raise TaskError("UPSTREAM_AUTH", "The key is wrong")

    return worker


def _key(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256(f"of-{name}".encode()).hexdigest(), **more}


@pytest.fixture
async def gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    settings = {"stream_flush_interval_ms": 0, "stream_flush_size": 1}
    keys = [_key("site"), _key("other"), _key("ops", scopes=["admin"])]
    async with talking(redis_url, tmp_path, keys=keys, **settings) as talk, serving(cast(talk.served.url)):
        pool = talk.served.gateway.dispatcher.pool
        await until(lambda: any(True for _ in pool), "the worker to be known")
        yield talk


async def test_it_does_what_it_promises_with_a_gateway_and_a_bad_network(
    gateway: Talk, program: Path
) -> None:
    port = int(gateway.served.url.rpartition(":")[2])
    async with Cutting(port) as cutting:
        told = await node(
            *("--test", "--test-reporter=tap", "gateway.test.mjs"),
            cwd=program,
            GATEWAY=gateway.served.url,
            CUT=f"http://127.0.0.1:{cutting.port}",
            KEY="of-site",
            OTHER_KEY="of-other",
        )
    assert "# fail 0" in told


# ---- types ----------

TYPES = (CLIENT / "fairlane.d.ts").read_text()
PROGRAM = (CLIENT / "fairlane.js").read_text()


def members(name: str) -> set[str]:
    """The members of an interface in fairlane.d.ts, those that it inherits as well."""
    found = re.search(rf"interface {name}(?: extends ([\w, ]+))? {{(.*?)\n}}", TYPES, re.DOTALL)
    assert found is not None, name
    inherited = [members(other) for other in found[1].split(", ")] if found[1] else []
    return set().union(*inherited) | set(re.findall(r"^  (\w+)\??:", found[2], re.MULTILINE))


def test_its_events_are_the_gateways() -> None:
    for kind, schema in events.DATA.items():
        assert members(kind) == schema["properties"].keys(), kind
    assert members("Events") == events.EVENTS.keys()


def test_what_it_exports_has_types_and_its_version_is_the_gateways() -> None:
    exported = set(re.findall(r"^export (?:async )?(?:function\*?|class|const) (\w+)", PROGRAM, re.MULTILINE))
    described = set(re.findall(r"^export (?:function|class|const) (\w+)", TYPES, re.MULTILINE))
    assert exported == described
    package = json.loads((CLIENT / "package.json").read_text())
    assert package["version"] == fairlane.__version__
    assert not {"dependencies", "devDependencies"} & package.keys()
    for file in package["files"]:
        assert (CLIENT / file).is_file(), file


@pytest.mark.slow
async def test_its_types_hold_for_those_who_use_it() -> None:
    sources = ["tests/integration/client/types", "web/client"]
    checkout = installed(REPOSITORY, sources, "tests/integration/client/types")
    folder = checkout / "tests" / "integration" / "client" / "types"
    await node("node_modules/typescript/bin/tsc", "--project", ".", cwd=folder)
