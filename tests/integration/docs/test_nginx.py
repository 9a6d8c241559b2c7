"""nginx with the configurations that the documents give: streams arrive as they come, workers connect, a refusal goes to the next
gateway, and Open WebUI's users are users."""

import asyncio
import contextlib
import re
import ssl
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.integration.native.keys import key, secret
from tests.support.nginx import NGINX, nginx
from tests.support.rawworkers import RawWorker
from tests.support.servers import free_port
from tests.support.serving import WORKER_TOKEN, http_client, until
from tests.support.talk import Talk
from websockets.asyncio.client import connect

from .blocks import ROOT

Start = Callable[..., AbstractAsyncContextManager[Talk]]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine"),
]


async def answers(url: str, verify: ssl.SSLContext | bool = True) -> None:
    async with http_client(verify=verify) as http:

        async def ready() -> bool:
            with contextlib.suppress(OSError, Exception):  # whatever it is while nginx starts
                return (await http.get(f"{url}/livez")).status_code == 200
            return False

        await until(ready, "nginx to answer")


def certificate(folder: Path) -> ssl.SSLContext:
    """Makes a certificate for 127.0.0.1 in the folder; the context that trusts it."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True,
        capture_output=True,
    )
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


def port_of(talk: Talk) -> str:
    return talk.served.url.rpartition(":")[2]


async def test_a_stream_a_worker_and_a_gateway_that_refuses(gateway: Start, tmp_path: Path) -> None:
    trust = certificate(tmp_path)
    port, plain = free_port(), free_port()
    async with gateway(keys=[key("alice")]) as here, gateway(keys=[key("alice")]) as other:
        text = (ROOT / "deploy/compose/nginx.conf").read_text()
        for pattern, ours in (
            (r"gateway-a:8080", f"127.0.0.1:{port_of(here)}"),
            (r"gateway-b:8080", f"127.0.0.1:{port_of(other)}"),
            (r"/etc/nginx/tls", str(tmp_path)),
            (r"listen 443", f"listen 127.0.0.1:{port}"),
            (r"listen 80;", f"listen 127.0.0.1:{plain};"),
        ):
            text, count = re.subn(pattern, ours, text)
            assert count, pattern
        async with nginx(tmp_path, text):
            url = f"https://127.0.0.1:{port}"
            await answers(url, trust)
            headers = {"Authorization": f"Bearer {WORKER_TOKEN}"}
            async with connect(
                f"wss://127.0.0.1:{port}/ws", ssl=trust, additional_headers=headers, proxy=None
            ) as link:
                worker = RawWorker(link)
                headers = {"Authorization": f"Bearer {secret('alice')}"}
                body = {"stream": True, "messages": []}
                async with (
                    http_client(url, verify=trust, headers=headers) as http,
                    http.stream("POST", "/api/openai", json=body) as answer,
                ):
                    assert answer.status_code == 200
                    task = await worker.take()
                    await worker.chunk(task, "first")
                    lines = answer.aiter_lines()
                    async with asyncio.timeout(10):
                        async for line in lines:
                            if '"first"' in line:
                                break  # before the task has ended: nothing is collected on the way
                    await worker.answer(task)
                    rest = [line async for line in lines]
                    assert "event: done" in rest
                other.served.gateway.tasks.lifecycle.drain(5000)
                async with http_client(url, verify=trust, headers=headers) as http:
                    for _ in range(4):  # every second one is sent to the gateway that refuses, first
                        calling = here.later(http.post("/api/openai", json={"messages": []}))
                        await worker.answer(await worker.take(), "done")
                        assert (await calling).json() == "done"
                async with http_client(f"http://127.0.0.1:{plain}") as http:
                    redirect = await http.get("/v1/models")
                    assert redirect.status_code == 308
