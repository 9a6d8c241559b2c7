"""nginx in the foreground, as whoever runs the tests."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
"""None: there is none on this machine."""
_BEFORE_GATEWAYS = Path(__file__).parents[2] / "deploy/compose/nginx.conf"
_IN_FRONT = Path(__file__).parents[2] / "deploy/permits/nginx.conf"


def in_front_of(behind: int, port: int, gateways: Sequence[str], endpoint: str = "image") -> str:
    """The configuration that stands in deploy/, for a server behind and a port of nginx on this machine, gateways (`host:port`;
    the first and the last), and an endpoint."""
    text = _IN_FRONT.read_text()
    for pattern, ours in (
        (r"gateway-a:8080", gateways[0]),
        (r"gateway-b:8080", gateways[-1]),
        (r"image-service:9000", f"127.0.0.1:{behind}"),
        (r"listen 80;", f"listen 127.0.0.1:{port};"),
        (r"/api/permit/check/image;", f"/api/permit/check/{endpoint};"),
    ):
        text, count = re.subn(pattern, ours, text)
        assert count, pattern
    return text


def before_gateways(folder: Path, port: int, gateways: Sequence[str]) -> str:
    """The configuration of deploy/compose without TLS, for two gateways and a port of nginx on this machine; its logs are in
    `folder`."""
    text = re.sub(r"\n *ssl_certificate.*", "", _BEFORE_GATEWAYS.read_text())
    text = re.sub(r"server \{\n *listen 80;.*?\n\}\n", "", text, flags=re.DOTALL)
    for ours, place in (
        (gateways[0], "gateway-a:8080"),
        (gateways[1], "gateway-b:8080"),
        (f"listen 127.0.0.1:{port};", "listen 443 ssl;"),
        (f"{folder}/", "/var/log/nginx/"),
    ):
        assert place in text, place
        text = text.replace(place, ours)
    return text


@contextlib.asynccontextmanager
async def nginx(folder: Path, configuration: str) -> AsyncIterator[None]:
    """nginx with this configuration inside its `http`, until the block ends."""
    assert NGINX
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    quiet = "" if "access_log" in configuration else "access_log off;"
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{ worker_connections 4096; }}\n"
        f"http {{\n{quiet}\n{temporary}\n{configuration}\n}}\n"
    )
    child = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(folder), "-c", "nginx.conf", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        child.terminate()
        await child.wait()
