"""SQL databases for tests: SQLite files that have the schema already, and a real PostgreSQL."""

import asyncio
import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import LRUCache

from fairlane.gateway.database import database, schema
from fairlane.gateway.database.address import FILE, Address, File, parse_address
from fairlane.gateway.database.database import Database

START_S = 30.0
_COMPILED_AT_MOST = 2000
TEMPLATE = "with_schema"

SCHEMA_STATE = "SELECT sum(n) || ' ' || sum(x) FROM ({}) AS all_of_it".format(
    " UNION ALL ".join(
        f"SELECT count(*) AS n, sum(xmin::text::bigint) AS x FROM pg_{catalog}"
        for catalog in (
            "namespace",
            "class",
            "attribute",
            "attrdef",
            "constraint",
            "index",
            "trigger",
            "proc",
        )
    )
)
"""Tells whether a statement has changed the schema: each writes rows of these catalogs."""

EMPTYING = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid();
SET session_replication_role = replica;
DO $$
DECLARE one regclass;
BEGIN
  IF ({query}) <> '{state}' OR pg_database_size(current_database()) > 20e6 THEN
    RAISE 'another schema, or large';
  END IF;
  FOR one IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('DELETE FROM %s', one);
  END LOOP;
END $$;
"""


def share_compiled_statements() -> None:
    """Have the gateways of this process compile each statement for SQLite once: each has a dialect and a cache of its own, and
    would do so again, a millisecond each. All dialects are alike, as there is one SQLite."""
    SQLiteDialect_aiosqlite.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign,assignment]
    SQLiteDialect_aiosqlite.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign,assignment]
    compiled: LRUCache[Any, Any] = LRUCache(_COMPILED_AT_MOST)
    own = database._engine

    def engine(address: Address, connections: int) -> AsyncEngine:
        made = own(address, connections)
        if isinstance(address, File):
            made.sync_engine._compiled_cache = compiled
        return made

    database._engine = engine


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
    with tempfile.TemporaryDirectory() as name:
        _beside_any_loop(_with_schema(parse_address(None, Path(name))))
        return (Path(name) / FILE).read_bytes()


async def _with_schema(address: Address) -> None:
    made = Database(address)
    await made.start()
    await made.close()


def _beside_any_loop(work: Coroutine[Any, Any, None]) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(work)).result()


class Postgres:
    """One PostgreSQL server on a unix socket, without a password and without fsync; `start` and `stop` may be repeated."""

    def __init__(self, folder: Path) -> None:
        """`folder`: short and empty. (A socket's path has 107 bytes at most.)"""
        self._folder, self._data = folder, folder / "data"
        self._as_owner: list[str] = []
        self._copies: set[str] = set()
        if os.getuid() == 0:  # it does not run as root
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            self._as_owner = [
                "setpriv",
                f"--reuid={owner.pw_uid}",
                f"--regid={owner.pw_gid}",
                "--clear-groups",
            ]
        with _locked(_cache()) as cache:
            if not (cache / "made").exists():
                self._make()
                shutil.rmtree(cache / "data", ignore_errors=True)
                self._data.rename(cache / "data")
                (cache / "made").touch()
        self._run("cp", "--archive", str(cache / "data"), str(self._data), owner=False)

    def _make(self) -> None:
        """A server's files, with a database that has the schema: it takes a second and a half of a processor."""
        self._run("initdb", "--auth=trust", "--username=fairlane", "--no-sync", "--pgdata", str(self._data))
        self.start()
        _beside_any_loop(_with_schema(parse_address(self.empty(TEMPLATE), self._folder)))
        self.stop("fast")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self._folder} -c fsync=off -c max_connections=60"
        self._run("pg_ctl", "--pgdata", str(self._data), "--wait", "--silent", "--options", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """End it, and cut all connections."""
        self._run("pg_ctl", "--pgdata", str(self._data), "--wait", "--silent", f"--mode={mode}", "stop")

    def new(self, name: str) -> str:
        """The URL of a database that has the schema and is otherwise empty: a copy, as files of SQLite are.

        One of this name that was made before is emptied, a tenth of the work, if it is still small and of this schema.
        """
        if name not in self._copies or not self._emptied(name):
            self._make_database(name, TEMPLATE)
            self._copies.add(name)
        return self._url(name)

    def empty(self, name: str) -> str:
        """The URL of an empty database, made now."""
        self._make_database(name, "template1")
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://fairlane@/{name}?host={self._folder}"

    def _make_database(self, name: str, template: str) -> None:
        drop, make = (
            f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
            f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY",
        )
        self._sql("postgres", "--command", drop, "--command", make)

    def _emptied(self, name: str) -> bool:
        try:
            self._sql(name, "--single-transaction", "--file", str(self._emptying()))
        except AssertionError:
            return False
        return True

    def _emptying(self) -> Path:
        """A script: cuts all connections, and leaves the rows of a database that was made a moment ago."""
        script, rows, state = (self._folder / name for name in ("empty.sql", "rows.sql", "state"))
        if not script.exists():
            where = self._connection(TEMPLATE)
            self._run("pg_dump", *where, "--data-only", "--inserts", "--file", str(rows))
            self._sql(
                TEMPLATE, "--no-align", "--tuples-only", "--output", str(state), "--command", SCHEMA_STATE
            )
            emptying = EMPTYING.format(query=SCHEMA_STATE, state=state.read_text().strip())
            script.write_text(emptying + rows.read_text())
        return script

    def _connection(self, database: str) -> list[str]:
        return ["--host", str(self._folder), "--username", "fairlane", "--dbname", database]

    def _sql(self, database: str, *arguments: str) -> None:
        options = ["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]
        self._run("psql", *self._connection(database), *options, *arguments)

    def _run(self, program: str, *arguments: str, owner: bool = True) -> None:
        # what Debian has on the path looks for the right version first, in Perl
        versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
        found = str(versions[-1]) if versions else shutil.which(program) or program
        command = [*(self._as_owner if owner else ()), found, *arguments]
        with (self._folder / "log").open("ab") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, cwd=self._folder, timeout=START_S, check=False
            )
        assert done.returncode == 0, (self._folder / "log").read_text()[-2000:]


def _cache() -> Path:
    """Where this user's tests keep the files of a server with this schema."""
    folder = Path(schema.__file__).parent
    digest = hashlib.sha256()
    for file in sorted((*folder.rglob("*.py"), *Path("/usr/lib/postgresql").glob("*"))):
        digest.update(str(file).encode() + (file.read_bytes() if file.is_file() else b""))
    return Path(tempfile.gettempdir()) / f"fairlane-tests-pg-{os.getuid()}-{digest.hexdigest()[:12]}"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """One process at a time."""
    folder.mkdir(mode=0o755, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder


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
