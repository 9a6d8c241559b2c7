"""Secrets that the gateway makes."""

import hashlib
import re
from pathlib import Path

import pytest

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.no_auth import KeyPresence
from fairlane.gateway.accounts.secrets import new_secret, with_first_start_keys
from fairlane.gateway.settings import Settings, SettingsError

SHA = "a" * 64


def test_secret_names_its_key_and_carries_256_bits() -> None:
    secret, sha256 = new_secret("key", "acme")
    assert re.fullmatch(r"fl_acme_[A-Za-z0-9_-]{43}", secret)
    assert sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert new_secret("worker", "gpu-1")[0].startswith("flw_gpu-1_")
    assert new_secret("key", "acme")[0] != secret


def test_first_start_off_loopback_makes_keys_once_and_loads_them_later(tmp_path: Path) -> None:
    settings = Settings(host="0.0.0.0", data_dir=tmp_path / "data")
    first, created = with_first_start_keys(settings)
    assert [made.kind for made in created] == ["key", "worker"]
    for made in created:
        assert made.path.read_text() == f"{made.secret}\n"
        assert made.secret not in made.path.with_suffix(".json").read_text()
    again, none = with_first_start_keys(settings)
    assert none == []
    assert (again.keys, again.workers) == (first.keys, first.workers)
    callers = Callers(again)
    assert callers.authenticate({b"authorization": f"Bearer {created[0].secret}"}.get).admin
    assert callers.authenticate_worker(f"Bearer {created[1].secret}") is not None
    files = list((tmp_path / "data").iterdir())
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 4


def test_what_the_database_has_is_not_made_and_a_file_of_before_still_holds(tmp_path: Path) -> None:
    settings = Settings(host="0.0.0.0", data_dir=tmp_path)
    assert with_first_start_keys(settings, KeyPresence(exist=True, keys=True, tokens=True)) == (settings, [])
    assert list(tmp_path.iterdir()) == []
    lacks_token, [token] = with_first_start_keys(settings, KeyPresence(exist=True, keys=True))
    assert (lacks_token.keys, token.kind) == ([], "worker")
    _, [key] = with_first_start_keys(settings, KeyPresence(exist=True, tokens=True))
    assert key.kind == "key"
    again, none = with_first_start_keys(settings, KeyPresence(exist=True, keys=True, tokens=True))
    assert ([entry.id for entry in [*again.keys, *again.workers]], none) == (["first", "first"], [])


def test_loopback_needs_no_keys(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    assert with_first_start_keys(settings) == (settings, [])
    assert not (tmp_path / "data").exists()


def test_with_keys_on_loopback_a_worker_token_is_made_once(tmp_path: Path) -> None:
    values = {"data_dir": tmp_path / "data", "keys": [{"id": "a", "sha256": SHA}]}
    settings, [made] = with_first_start_keys(Settings.model_validate(values))
    assert (made.kind, [key.id for key in settings.keys]) == ("worker", ["a"])
    assert Callers(settings).authenticate_worker(f"Bearer {made.secret}") is not None
    again, none = with_first_start_keys(Settings.model_validate(values))
    assert (again.workers, none) == (settings.workers, [])


def test_tokens_of_workers_alone_leave_a_gateway_on_loopback_open_to_callers(tmp_path: Path) -> None:
    values = {"data_dir": tmp_path / "data", "workers": [{"id": "gpu", "sha256": SHA}]}
    settings = Settings.model_validate(values)
    assert with_first_start_keys(settings) == (settings, [])
    assert Callers(settings).open


def test_configured_keys_are_left_alone_and_only_what_is_missing_is_made(tmp_path: Path) -> None:
    values = {"host": "0.0.0.0", "data_dir": tmp_path, "keys": [{"id": "a", "sha256": SHA}]}
    settings, created = with_first_start_keys(Settings.model_validate(values))
    assert [key.id for key in settings.keys] == ["a"]
    assert [made.kind for made in created] == ["worker"]


def test_spoilt_key_file_is_an_error_and_never_opens_the_gateway(tmp_path: Path) -> None:
    settings = Settings.model_validate({"host": "0.0.0.0", "data_dir": tmp_path})
    with_first_start_keys(settings)
    (tmp_path / "first-caller-key.json").write_text("{}")
    with pytest.raises(SettingsError, match="first keys"):
        with_first_start_keys(settings)


def test_unusable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="configure keys and workers"):
        with_first_start_keys(Settings.model_validate({"host": "0.0.0.0", "data_dir": tmp_path / "file"}))


def test_hashes_tell_sets_of_keys_apart() -> None:
    def hash_of(keys: dict[str, str], workers: dict[str, str]) -> str:
        return Callers(
            Settings.model_validate(
                {
                    "keys": [{"id": name, "sha256": sha * 64} for name, sha in keys.items()],
                    "workers": [{"id": name, "sha256": sha * 64} for name, sha in workers.items()],
                }
            )
        ).hash

    before = hash_of({"a": "1", "b": "2"}, {"gpu": "4"})
    assert before == hash_of({"b": "2", "a": "1"}, {"gpu": "4"}), "in any order"
    assert (
        len(
            {before, hash_of({"a": "1", "b": "3"}, {"gpu": "4"}), hash_of({"a": "1", "b": "2"}, {"cpu": "4"})}
        )
        == 3
    )
