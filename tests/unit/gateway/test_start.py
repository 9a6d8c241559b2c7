"""The start of a gateway, as far as it goes without Redis: what the database says of keys, and when keys are made."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.databases import place_database
from typer.testing import CliRunner

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.accounts.no_auth import KeyPresence
from fairlane.gateway.cli.main import app
from fairlane.gateway.database.address import FILE, parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.serve import start
from fairlane.gateway.settings import Settings
from fairlane.queues.clock import now_ms


def write(
    data_dir: Path, *statements: str, key: str = "", token: str = "", until_ms: int | None = None
) -> KeyPresence:
    """Put a key and a token into the database of a data directory; what it has then."""
    place_database(data_dir)

    async def run() -> KeyPresence:
        database = Database(parse_address(None, data_dir))
        try:
            store = KeyStore(database)
            async with store.changing() as change:
                if key:
                    await change.add(key, "caller", {"scopes": ["admin"]}, "", None, now_ms())
                    await change.add_secret(key, digest(key), now_ms())
                if token:
                    await change.add(token, "worker", {}, "", until_ms, now_ms())
                    await change.add_secret(token, digest(token), now_ms())
            async with database.writing() as connection:
                for statement in statements:
                    await connection.exec_driver_sql(statement)
            return await store.presence()
        finally:
            await database.close()

    return asyncio.run(run())


def test_what_the_database_has_of_keys(tmp_path: Path) -> None:
    assert write(tmp_path) == KeyPresence()
    assert write(tmp_path, token="old", until_ms=1) == KeyPresence(exist=True)
    assert write(tmp_path, key="boss") == KeyPresence(exist=True, keys=True)
    assert write(tmp_path, token="gpu") == KeyPresence(exist=True, keys=True, tokens=True)
    assert write(tmp_path, "UPDATE keys SET revoked = 1") == KeyPresence(exist=True, keys=True), "it was one"
    assert write(tmp_path, token="cpu").tokens
    assert not write(tmp_path, "UPDATE secrets SET valid_until = 1").tokens


def test_a_port_that_is_taken_makes_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "configure_logging", lambda *how: None)  # it would hold for the tests behind
    with socket.create_server(("0.0.0.0", 0)) as taken:
        settings = Settings(host="0.0.0.0", port=taken.getsockname()[1], data_dir=tmp_path / "data")
        assert start.run(settings) == 1
    said = capsys.readouterr()
    assert "cannot listen on" in said.err
    assert said.out == ""
    assert not (tmp_path / "data").exists()


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    for name in ("FAIRLANE_CONFIG", "FAIRLANE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def check(**settings: object) -> str:
        done = CliRunner().invoke(
            app,
            ["config", "check"],
            env={f"FAIRLANE_{name.upper()}": str(value) for name, value in settings.items()},
        )
        assert done.exit_code == 0, done.output
        return done.stderr

    return check


def test_check_knows_the_keys_of_the_database(tmp_path: Path, said: Callable[..., str]) -> None:
    data = tmp_path / "data"
    assert "no keys are configured: every program" in said(data_dir=data)
    assert not data.exists(), "it makes nothing"
    write(data)
    assert "no keys are configured: every program" in said(data_dir=data)
    write(data, key="boss")
    assert said(data_dir=data).startswith(
        "fairlane: there are no worker tokens: workers need one (fairlane key create"
    )
    assert "no worker tokens are configured" in said(data_dir=data, host="0.0.0.0")
    write(data, token="gpu")
    assert said(data_dir=data) == ""
    assert said(data_dir=data, host="0.0.0.0") == ""
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({"keys": [{"id": "a", "sha256": "a" * 64}]}))
    assert said(data_dir=data, config=file) == ""


def test_check_says_when_it_cannot_look(tmp_path: Path, said: Callable[..., str]) -> None:
    away = "postgresql://127.0.0.1:1/fairlane"
    told = said(data_dir=tmp_path, database_url=away)
    assert told.startswith("fairlane: the keys in the database are unknown: PostgreSQL at 127.0.0.1:1")
    (tmp_path / FILE).touch()
    assert "no keys are configured" in said(data_dir=tmp_path), "it has no schema"
