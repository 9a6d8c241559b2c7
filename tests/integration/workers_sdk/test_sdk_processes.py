"""Workers as processes of their own: signals, the command line, the examples, a real upstream connection."""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import process
from typer.testing import CliRunner

from fairlane.workers.cli import app
from fairlane.workers.testing import FakeGateway

from .sdk_bench import COMMAND, DEADLINE_S, REPOSITORY, run_command

pytestmark = pytest.mark.anyio
EXAMPLES = REPOSITORY / "examples"
HELLO = {"messages": [{"role": "user", "content": "hello out there"}]}

SLOW = """
import asyncio
from fairlane.workers.sdk import Worker

worker = Worker(slots=2)

@worker.handler(models=["slow"])
async def slow(task, context):
    yield "first "
    await asyncio.sleep(task.payload["seconds"])
    yield "last"

not_a_worker = 3
"""


@pytest.fixture
def slow_module(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "slow_module.py").write_text(SLOW)
    (tmp_path / "broken_module.py").write_text("import there_is_no_such_package")
    (tmp_path / "raising_module.py").write_text("raise RuntimeError('at import')")
    yield tmp_path
    for name in ("slow_module", "broken_module", "raising_module"):
        sys.modules.pop(name, None)


async def test_sigterm_lets_running_tasks_finish(gateway: FakeGateway, slow_module: Path) -> None:
    async with process(
        *COMMAND, "run", "slow_module:worker", cwd=slow_module, FAIRLANE_GATEWAY=gateway.url
    ) as child:
        await gateway.worker("slow")
        given = await gateway.give("x", {"seconds": 0.3}, model="slow", stream=True)
        async with asyncio.timeout(DEADLINE_S):
            await given.first_output.wait()
        child.send_signal(signal.SIGTERM)
        assert (await given.outcome()).text == "first last"
        async with asyncio.timeout(DEADLINE_S):
            assert await child.wait() == 0
    await gateway.until(lambda: given.link.close_code is not None)
    assert given.link.close_code == 1000


async def test_a_second_signal_cancels(gateway: FakeGateway, slow_module: Path) -> None:
    async with process(
        *COMMAND, "run", "slow_module:worker", "--gateway", gateway.url, cwd=slow_module
    ) as child:
        await gateway.worker("slow")
        given = await gateway.give("x", {"seconds": 600}, model="slow", stream=True)
        async with asyncio.timeout(DEADLINE_S):
            await given.first_output.wait()
        child.send_signal(signal.SIGINT)
        await gateway.until(lambda: given.link.draining)
        child.send_signal(signal.SIGINT)
        outcome = await given.outcome()
        async with asyncio.timeout(DEADLINE_S):
            assert await child.wait() == 0
    assert outcome.error_info is not None
    assert outcome.error_info["retryable"] is True


async def test_echo_and_simulate_serve_any_model(gateway: FakeGateway, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    gateway.token = "secret"
    http = gateway.url.replace("ws", "http", 1).removesuffix("/ws")
    async with process(
        *COMMAND, "start", "--provider", "echo", "--gateway", http, "--token-file", str(token)
    ):
        outcome = await gateway.run("openaiLike", HELLO, model="whatever", stream=True)
        assert outcome.text == "hello out there"
    await gateway.until(lambda: not gateway.links)
    arguments = (
        "--model",
        "sim",
        "--slots",
        "2",
        "--tokens-per-second",
        "0",
        "--ttft-ms",
        "1",
        "--tokens",
        "5",
    )
    async with process(
        *COMMAND, "simulate", *arguments, FAIRLANE_GATEWAY=http, FAIRLANE_WORKER_TOKEN="secret"
    ):
        outcome = await gateway.run("openaiLike", HELLO, model="sim", stream=True)
        assert len(outcome.deltas) == 6
        assert gateway.links[0].slots == 2


async def test_a_wrong_token_ends_the_command_with_a_sentence(gateway: FakeGateway) -> None:
    gateway.token = "right"
    code, _, err = await run_command(
        "start", "--provider", "echo", "--gateway", gateway.url, FAIRLANE_WORKER_TOKEN="wrong"
    )
    assert code == 1
    assert "FAIRLANE_WORKER_TOKEN" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "slow_module"], "write MODULE:WORKER"),
        (["run", "slow_module:other"], "has no 'other'"),
        (["run", "slow_module:not_a_worker"], "is a int, not a Worker"),
        (["run", "broken_module:worker"], "needs 'there_is_no_such_package'"),
        (["run", "raising_module:worker"], "RuntimeError: at import"),
        (["run", "slow_module:worker", "--gateway", "h:1"], "not a gateway address"),
        (["start", "--provider", "echo", "--token-file", "missing"], "cannot be read"),
        (["start", "--provider", "echo", "--token-file", "token"], "The worker token holds '…'"),
        (["start", "--provider", "openai", "--base-url", "nowhere", "--model", "m"], "not a base URL"),
        (
            [
                "start",
                "--provider",
                "openai",
                "--base-url",
                "http://h",
                "--model",
                "m",
                "--api-key-env",
                "NO_KEY",
            ],
            "NO_KEY",
        ),
        (
            [
                "start",
                "--provider",
                "openai",
                "--base-url",
                "http://h",
                "--model",
                "a",
                "--model",
                "b",
                "--upstream-model",
                "c",
            ],
            "one for each",
        ),
        (["simulate", "--failure-code", "OOPS"], "not a failure code"),
        (["try", "slow_module:worker", "--payload", "missing.json"], "cannot be read"),
        (["try", "slow_module:worker", "--payload", "slow_module.py"], "not JSON"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence_and_exit_code_2(
    slow_module: Path, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(slow_module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("token").write_text("flw_gpu-1_…")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("command", [[], ["run"], ["start"], ["simulate"], ["try"]])
def test_help_teaches_with_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "fairlane worker" in result.stdout


async def test_a_mistake_is_the_exit_code_of_the_process(tmp_path: Path) -> None:
    code, out, err = await run_command("run", "nowhere:worker", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert "There is no module 'nowhere'" in err


async def test_try_prints_chunks_and_usage_and_no_result_that_there_is_not_without_a_gateway() -> None:
    code, out, _ = await run_command(
        "try", "worker_sdk:worker", "--payload", "-", cwd=EXAMPLES, stdin=json.dumps(HELLO)
    )
    assert code == 0
    assert (
        "".join(line for line in out.splitlines() if line.isupper() or not line.strip()) == "HELLO OUT THERE "
    )
    assert 'delta: {"finishReason":"stop"}' in out
    assert 'usage: {"inputTokens":3,"outputTokens":3}' in out
    assert "result" not in out


async def test_try_tells_a_failure_and_exits_with_1(tmp_path: Path) -> None:
    payload = tmp_path / "payload.json"
    payload.write_text('{"messages": []}')
    code, _, err = await run_command("try", "worker_sdk:worker", "--payload", str(payload), cwd=EXAMPLES)
    assert code == 1
    assert "failed: BAD_REQUEST: There is nothing to shout." in err
    code, _, err = await run_command(
        "try", "worker_sdk:worker", "--payload", str(payload), "--model", "other", cwd=EXAMPLES
    )
    assert code == 1
    assert "No handler for model 'other'" in err


PARTS = [{"type": "text", "text": "hello"}, {"type": "image_url"}, {"type": "text", "text": "out there"}]
ORDINARY = [HELLO, {"messages": [{"role": "user", "content": PARTS}]}, {"prompt": "hello out there"}]


async def check_shouting(gateway: FakeGateway, model: str) -> None:
    """What ordinary requests hold is answered, an odd one ends no worker, and a closed connection is made again."""
    for payload in ORDINARY:
        outcome = await gateway.run("openaiLike", payload, model=model, stream=True)
        assert outcome.text.split() == ["HELLO", "OUT", "THERE"]
        assert outcome.error is None
    assert (await gateway.run("openaiLike", {"messages": ["odd"]}, model=model, stream=True)).error
    await gateway.links[0].close(1012, "restart")
    outcome = await gateway.run("openaiLike", HELLO, model=model, stream=True)
    assert outcome.text == "HELLO OUT THERE "


async def test_the_python_example_of_version_1_works() -> None:
    async with (
        FakeGateway(token="secret") as gateway,
        process(str(EXAMPLES / "worker_v1.py"), FAIRLANE_GATEWAY=gateway.url, FAIRLANE_WORKER_TOKEN="secret"),
    ):
        assert (await gateway.worker("default")).version == 1
        await check_shouting(gateway, "default")


async def test_the_sdk_example_works() -> None:
    async with FakeGateway(token="secret") as gateway:
        http = gateway.url.replace("ws", "http", 1).removesuffix("/ws")
        async with process(
            str(EXAMPLES / "worker_sdk.py"), FAIRLANE_GATEWAY=http, FAIRLANE_WORKER_TOKEN="secret"
        ):
            assert (await gateway.worker("shout")).slots == 4
            await check_shouting(gateway, "shout")


async def test_the_node_example_of_version_1_works(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    assert npm is not None, "this test needs npm and Node 20"
    assert node is not None
    async with process("install", "--no-audit", "--no-fund", "ws@8", program=npm, cwd=tmp_path) as install:
        out, err = await asyncio.wait_for(install.communicate(), 60)
        assert install.returncode == 0, (out + err).decode()
    shutil.copy(EXAMPLES / "worker_v1.mjs", tmp_path)
    async with FakeGateway(token="secret") as gateway:
        http = gateway.url.replace("ws", "http", 1).removesuffix("/ws")
        async with process(
            "worker_v1.mjs", program=node, cwd=tmp_path, FAIRLANE_GATEWAY=http, FAIRLANE_WORKER_TOKEN="secret"
        ):
            assert (await gateway.worker("default")).version == 1
            await check_shouting(gateway, "default")


class Upstream:
    """An HTTP server that streams one token and then waits; `left` is set when its client hangs up."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.heads: list[bytes] = []
        self.url = ""

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET "):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        self.heads.append(head)
        data = b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n" % (len(data), data)
        )
        while await reader.read(65536):
            pass
        self.left.set()
        writer.close()


async def test_a_cancel_reaches_the_upstream_server(gateway: FakeGateway) -> None:
    upstream = Upstream()
    server = await upstream.start()
    async with (
        server,
        process(
            *COMMAND,
            *("start", "--provider", "openai"),
            *(
                "--base-url",
                upstream.url,
                "--model",
                "m",
                "--upstream-model",
                "real",
                "--api-key-env",
                "MY_KEY",
            ),
            FAIRLANE_GATEWAY=gateway.url,
            MY_KEY="sk-test",
        ),
    ):
        given = await gateway.give("openaiLike", HELLO, model="m", stream=True)
        async with asyncio.timeout(DEADLINE_S):
            await given.first_output.wait()
        await given.cancel()
        await given.outcome()
        async with asyncio.timeout(DEADLINE_S):
            await upstream.left.wait()
        assert given.so_far.text == "one"
        assert b"POST /v1/chat/completions" in upstream.heads[0]
        assert b"Bearer sk-test" in upstream.heads[0]
