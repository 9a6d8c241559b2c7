"""Replicas that share a Redis share a database; `fairlane db` says which one it is."""

import contextlib
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support import prepared
from tests.support.databases import Postgres
from tests.support.processes import gateway_process
from tests.support.serving import serving

from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.store import connection
from fairlane.queues.errors import StoreRefused

pytestmark = pytest.mark.anyio


def run_command(*arguments: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    environ |= {f"FAIRLANE_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(
        prepared.command(*arguments),
        env=environ, cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


async def starts(redis_url: str, folder: Path, **settings: Any) -> None:
    async with serving(redis_url, folder, **settings):
        pass


async def test_replicas_of_one_redis_with_two_databases_are_refused(redis_url: str, tmp_path: Path) -> None:
    one, two = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    async with serving(redis_url, tmp_path, database_url=one):
        await starts(redis_url, tmp_path, database_url=one)
        with pytest.raises(StoreRefused, match=r"set database_url to theirs.*fairlane db adopt"):
            await starts(redis_url, tmp_path, database_url=two)


async def test_a_clock_that_differs_from_that_of_redis_is_told(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ahead_s, told in ((0.0, []), (420.0, [420.0]), (-60.0, [-60.0])):
        clock = SimpleNamespace(time=lambda ahead_s=ahead_s: time.time() + ahead_s)
        monkeypatch.setattr(connection, "time", clock)
        with capture_logs() as lines:
            await starts(redis_url, tmp_path)
        found = [line["ahead_s"] for line in lines if line["event"].startswith("the clock of this machine")]
        assert found == pytest.approx(told, abs=1)


async def test_a_redis_whose_database_is_gone_is_adopted_by_another(redis_url: str, tmp_path: Path) -> None:
    one, two = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    await starts(redis_url, tmp_path, database_url=one)
    done = run_command("db", "adopt", folder=tmp_path, redis_url=redis_url, database_url=two)
    assert done.returncode == 0, done.stderr
    await starts(redis_url, tmp_path, database_url=two)
    with pytest.raises(StoreRefused):
        await starts(redis_url, tmp_path, database_url=one)


async def test_a_database_that_is_away_is_one_sentence(redis_url: str, tmp_path: Path) -> None:
    url = "postgresql://u:secret@127.0.0.1:1/nowhere"
    with pytest.raises(DatabaseUnavailable, match=r"PostgreSQL at 127.0.0.1:1, nowhere") as raised:
        await starts(redis_url, tmp_path, database_url=url)
    assert "secret" not in str(raised.value)
    done = run_command("config", "check", folder=tmp_path, database_url=url)
    assert "PostgreSQL at 127.0.0.1:1, nowhere: " in done.stderr


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_gateway_says_why_it_does_not_start(redis_url: str, tmp_path: Path, processes: int) -> None:
    url = "postgresql://127.0.0.1:1/nowhere"
    with contextlib.suppress(AssertionError):
        async with gateway_process(tmp_path, redis_url, database_url=url, processes=processes) as gateway:
            raise RuntimeError(f"it started: {gateway.log}")
    said = (tmp_path / "gateway.log").read_text()
    assert "fairlane: PostgreSQL at 127.0.0.1:1, nowhere: " in said
    assert "Traceback" not in said


async def test_a_gateway_runs_on_postgresql(redis_url: str, tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.empty("gateway")
    async with gateway_process(tmp_path, redis_url, database_url=url):
        pass
    done = run_command("config", "check", folder=tmp_path, database_url=url)
    assert (done.returncode, "unknown" in done.stderr) == (0, False)


async def test_the_file_is_its_owners_alone(redis_url: str, tmp_path: Path) -> None:
    assert run_command("config", "check", folder=tmp_path).returncode == 0
    assert not (tmp_path / ".fairlane").exists()
    async with gateway_process(tmp_path, redis_url, database_url=f"sqlite:///{tmp_path}/own/fairlane.db"):
        pass
    assert (tmp_path / "own/fairlane.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
