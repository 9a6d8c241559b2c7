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


@contextlib.asynccontextmanager
async def nginx(folder: Path, configuration: str) -> AsyncIterator[None]:
    """nginx with this configuration inside its `http`, until the block ends."""
    assert NGINX
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{ worker_connections 4096; }}\n"
        f"http {{\naccess_log off;\n{temporary}\n{configuration}\n}}\n"
    )
    child = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(folder), "-c", "nginx.conf", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        child.terminate()
        await child.wait()
