"""nginx in the foreground, as whoever runs the tests."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
"""None: there is none on this machine."""


@contextlib.asynccontextmanager
async def nginx(folder: Path, configuration: str) -> AsyncIterator[None]:
    """nginx with this configuration inside its `http`, until the block ends."""
    assert NGINX
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
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
