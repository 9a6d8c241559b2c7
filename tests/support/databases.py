"""SQL databases for tests: SQLite files that have the schema already, and a real PostgreSQL."""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fairlane.gateway.database.address import FILE, parse_address
from fairlane.gateway.database.database import Database

START_S = 30.0


def place_database(data_dir: Path) -> None:
    """Put an empty database with the schema into a data directory that has none: to make one anew takes a third of a second.

    All have the same identifier, so replicas with a data directory each may share a Redis.
    """
    file = data_dir / FILE
    if not file.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_template())


@functools.cache
def _template() -> bytes:
    async def make(folder: Path) -> None:
        database = Database(parse_address(None, folder))
        await database.start()
        await database.close()

    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(1) as beside_any_loop:
        beside_any_loop.submit(lambda: asyncio.run(make(Path(name)))).result()
        return (Path(name) / FILE).read_bytes()


class Postgres:
    """One PostgreSQL server on a unix socket, without a password and without fsync; `start` and `stop` may be repeated."""

    def __init__(self, folder: Path) -> None:
        """`folder`: short and empty. (A socket's path has 107 bytes at most.)"""
        self._folder, self._data = folder, folder / "data"
        self._as_owner: list[str] = []
        if os.getuid() == 0:  # it does not run as root
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            self._as_owner = [
                "setpriv",
                f"--reuid={owner.pw_uid}",
                f"--regid={owner.pw_gid}",
                "--clear-groups",
            ]
        self._run("initdb", "--auth=trust", "--username=fairlane", "--no-sync", "--pgdata", str(self._data))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self._folder} -c fsync=off -c max_connections=60"
        self._run("pg_ctl", "--pgdata", str(self._data), "--wait", "--silent", "--options", options, "start")

    def stop(self) -> None:
        """End it, and cut all connections."""
        self._run("pg_ctl", "--pgdata", str(self._data), "--wait", "--silent", "--mode=immediate", "stop")

    def new(self, name: str) -> str:
        """The URL of an empty database, made now."""
        self._run("dropdb", "--if-exists", "--force", *self._where, name)
        self._run("createdb", *self._where, name)
        return f"postgresql://fairlane@/{name}?host={self._folder}"

    @property
    def _where(self) -> list[str]:
        return ["--host", str(self._folder), "--username", "fairlane"]

    def _run(self, program: str, *arguments: str) -> None:
        found = shutil.which(program) or str(max(Path("/usr/lib/postgresql").glob(f"*/bin/{program}")))
        command = [*self._as_owner, found, *arguments]
        with (self._folder / "log").open("ab") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, cwd=self._folder, timeout=START_S, check=False
            )
        assert done.returncode == 0, (self._folder / "log").read_text()[-2000:]


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="fl-pg-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder))
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(AssertionError):  # a test has stopped it
                server.stop()
