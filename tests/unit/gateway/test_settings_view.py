"""Every setting in one view: its value, where it comes from, since when, and by whom it was changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from fairlane.gateway.admin.changes import configured
from fairlane.gateway.admin.settings_view import (
    Own,
    Row,
    SourcedValue,
    differences,
    of_overrides,
    of_store,
    view,
)
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.settings import Settings, external_name, load_settings
from fairlane.queues.inspect.inspector import ReplicaInfo
from fairlane.queues.overrides import Override
from fairlane.queues.rules import ConfiguredSettings
from fairlane.queues.versions import Configuration

ENTRY = "FAIRLANE_MODELS__A_B__TOKENS_PER_MINUTE"
ABOUT = ReplicaInfo("one", 7, "0.2.0", 5, keys_hash="k", routes_hash="r", settings_hash="s")
FILE = """
port: 81
drain: 5ms
models: {a/b: {concurrency: 4}}
queues: {paid_stream: {weight: 3}, free_batch: {max_length: 9}}
routes: {fast: {model: a/b, tiers: {paid: {timeout: 5s}}, price: {input: 1, output: 2}, vision: {model: see}}}
templates: {sum: {messages: [{role: user, content: "a long text {{ x }}"}]}}
chains: {two: {stages: [{name: one, template: sum, model: a/b}]}}
prices: [{model: "*", input: 0.5, output: 2}]
keys:
  - {id: acme, sha256: "%s", quota: {budget: 5, per: day}, limits: {requests_per_minute: 3}}
upstreams: {gpu: {provider: vllm, models: [m]}}
endpoints: {image: {url: "https://images.example.com/*"}}
""" % ("ab" * 32)


def loaded(path: Path, text: str = FILE, environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    path.write_text(text)
    return load_settings(path, flags, environ or {})[0]


def rows(settings: Settings, *layers: Any, began_ms: int = 1, **own: Any) -> dict[str, Row]:
    given = Own(settings, began_ms, own.get("since", {}), own.get("read", settings))
    return {row.name: row for row in view(given, layers)}


@pytest.mark.parametrize(
    ("name", "value", "default", "source", "where"),
    [
        ("host", "::1", "127.0.0.1", "flag", "--host"),
        ("port", 82, 8080, "environment", "FAIRLANE_PORT"),
        ("task_timeout", "9s", "1m", "environment", "TASK_TIMEOUT_MS"),
        ("task_result_ttl", "1m", "5m", "environment", "STREAM_TTL_SECONDS"),
        ("drain", "5ms", "30s", "file", "f.yaml"),
        ("lease", "15s", "15s", "default", ""),
        ("stream_token_secret", None, None, "generated", "Redis"),
        ("models.a/b.tokens_per_minute", 70, None, "environment", ENTRY + " (models)"),
        ("models.a/b.cost", "tokens", "tokens", "default", ""),
        ("queues.paid_stream.weight", 3.0, 8.0, "file", "f.yaml"),
        ("queues.paid_batch.weight", 4.0, 4.0, "default", ""),
        ("routes.fast.tiers.paid.timeout", "5s", None, "file", "f.yaml"),
        ("routes.fast.vision.mode", None, None, "default", ""),
        ("prices[0].input", 0.5, None, "file", "f.yaml"),
        ("keys.acme.quota.per", "day", None, "file", "f.yaml"),
    ],
)
def test_every_setting_says_what_it_is_and_who_set_it(
    name: str,
    value: Any,
    default: Any,
    source: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"FAIRLANE_PORT": "82", "TASK_TIMEOUT_MS": "9000", "STREAM_TTL_SECONDS": "60", ENTRY: "70"}
    row = rows(loaded(Path("f.yaml"), environ=environ, host="::1"))[name]
    assert (row.value, row.default, row.source, row.where) == (value, default, source, where)
    assert row.differs == (value != default)
    assert (row.since, row.by, row.otherwise) == (1, None, None)


def test_keys_that_the_first_start_made_are_generated() -> None:
    made = Settings.model_validate({"keys": [{"id": "first", "sha256": "ab" * 32, "scopes": ["admin"]}]})
    row = rows(made)["keys.first.scopes"]
    assert (row.value, row.source, row.where) == (["admin"], "generated", ".fairlane")


def test_every_setting_has_a_row_and_each_name_is_there_once(tmp_path: Path) -> None:
    settings = loaded(tmp_path / "f.yaml")
    names = [row.name for row in view(Own(settings, 1, {}, settings))]
    assert len(names) == len(set(names))
    assert set(map(external_name, Settings.model_fields)) == {
        name.partition(".")[0].partition("[")[0] for name in names
    } | {"workers"}


# ---- what changes while running ----------


def store(settings: Settings, replica: str = "me") -> ConfiguredSettings:
    said = {
        (kind, name, setting): value
        for kind, entries in zip(("queue", "model"), configured(settings), strict=True)
        for name, values in entries.items()
        for setting, value in values.items()
        if value is not None
    }
    return ConfiguredSettings(Configuration(5, 6, "h", replica), said)  # type: ignore[arg-type]


def test_an_override_says_who_created_it_when_and_what_would_hold_otherwise(tmp_path: Path) -> None:
    settings = loaded(tmp_path / "f.yaml")
    override = Override("queue", "paid_stream", {"weight": 5.0}, id="o1", created_ms=17, created_by="ops")
    found = rows(settings, of_store(settings, store(settings)), of_overrides([override]))
    row = found["queues.paid_stream.weight"]
    assert (row.value, row.source, row.where, row.since, row.by) == (5.0, "changed", "override o1", 17, "ops")
    assert row.otherwise == SourcedValue(3.0, "file", str(tmp_path / "f.yaml"), 1)
    assert [row.name for row in found.values() if row.source in ("changed", "replica")] == [row.name]


def test_the_latest_override_holds_and_one_of_a_share_says_of_which(tmp_path: Path) -> None:
    settings = loaded(tmp_path / "f.yaml", "routes: {fast: {model: a}}")
    overrides = [
        Override("route", "fast", {"tiers.free.model": value}, percent=percent, id=value)
        for value, percent in (("b", 100), ("c", 10))
    ]
    row = rows(settings, of_overrides(overrides))["routes.fast.tiers.free.model"]
    assert (row.value, row.where) == ("c", "override c, for 10 % of the tasks")


def test_what_another_replicas_newer_file_says_holds_and_is_said_to(tmp_path: Path) -> None:
    mine = loaded(tmp_path / "f.yaml")
    newer = loaded(tmp_path / "g.yaml", "queues: {paid_stream: {weight: 7}}\nmodels: {new: {concurrency: 2}}")
    found = rows(mine, of_store(mine, store(newer, replica="other")))
    weight, gone, came = (
        found[name]
        for name in ("queues.paid_stream.weight", "models.a/b.concurrency", "models.new.concurrency")
    )
    assert (weight.value, weight.source, weight.where, weight.since) == (7.0, "replica", "other", 5)
    assert weight.otherwise is not None
    assert weight.otherwise.value == 3.0
    assert (gone.value, gone.source) == (None, "replica")
    assert (came.value, came.source) == (2, "replica")
    assert found["queues.free_batch.max_length"].value == 1000


def test_since_when_is_the_start_or_the_reload_that_brought_another_value(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    current = ActiveConfig(loaded(path))
    began = current.began_ms
    again = loaded(
        path,
        FILE.replace("weight: 3", "weight: 4").replace("drain: 5ms", "drain: 6ms") + "archive: results\n",
    )
    again.set_origins(replace(again.origins, read_ms=began + 1000))
    assert current.replace(again)["needs_restart"] == ["drain"]
    found = rows(current.settings, since=current.since, read=current.read, began_ms=began)
    since = {name.partition(".")[0]: row.since for name, row in found.items() if row.since != began}
    assert since == {"queues": began + 1000, "archive": began + 1000}
    drain = found["drain"]
    assert (drain.value, drain.reloads) == ("5ms", False)
    assert drain.after_restart == SourcedValue("6ms", "file", str(path), began + 1000)
    assert found["archive"].reloads
    gone = loaded(path, "{}")
    gone.set_origins(replace(gone.origins, read_ms=began + 2000))
    current.replace(gone)
    assert current.since["archive"] == current.since["queues"] == began + 2000
    kept = rows(current.settings)["drain"]
    assert (kept.value, kept.source) == ("5ms", "file"), (
        "as it waits for a restart, it came from where it came"
    )


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (ABOUT, []),
        (None, []),
        (msgspec.structs.replace(ABOUT, keys_hash="x"), ["keys"]),
        (msgspec.structs.replace(ABOUT, routes_hash="x", settings_hash="x"), ["routes", "others"]),
        (msgspec.structs.replace(ABOUT, settings_hash=""), []),
    ],
)
def test_replicas_differ_in_what_both_tell(other: ReplicaInfo | None, differs: list[str]) -> None:
    one, two = Configuration(1, 1, "a"), Configuration(2, 2, "b")
    assert differences(ABOUT, other, one, one) == differs
    assert differences(ABOUT, other, one, two) == [*differs, "queues and models"]
    assert differences(ABOUT, other, one, None) == differs


def test_what_replicas_have_each_for_itself_makes_no_difference(tmp_path: Path) -> None:
    mine, other = (
        ActiveConfig(loaded(tmp_path / f"{port}.yaml", f"port: {port}\ndata_dir: /tmp/{port}\n"))
        for port in (1, 2)
    )
    assert mine.settings_hash == other.settings_hash
    assert ActiveConfig(loaded(tmp_path / "x.yaml", "lease: 9s")).settings_hash != mine.settings_hash


# ---- secrets ----------

SECRET = st.text("ghijkmnopqrtuvwxyz", min_size=20, max_size=24)
HEX = st.text("0123456789abcdef", min_size=64, max_size=64)


@given(*(SECRET, SECRET, SECRET, SECRET), st.lists(HEX, min_size=4, max_size=4, unique=True))
def test_no_secret_is_in_the_view(redis: str, sql: str, token: str, traces: str, hashes: list[str]) -> None:
    said = {
        "redis_url": f"rediss://user:{redis}@db:6379/0?password={redis}",
        "database_url": f"postgresql://fairlane:{sql}@db/fairlane",
        "otlp_endpoint": f"https://me:{traces}@traces:4318",
        "stream_token_secret": token,
        "keys": [
            {"id": "a", "sha256": hashes[0], "delegating": True, "signing": True, "signing_key": hashes[1]},
            {"id": "b", "sha256": hashes[2]},
        ],
        "workers": [{"id": "w", "sha256": hashes[3]}],
    }
    settings = Settings.model_validate(said)
    before = Settings.model_validate({**said, "stream_token_secret": "another one, long enough"})
    shown = str(to_builtins(view(Own(settings, 1, {}, before), of_store(settings, store(settings)))))
    for secret in (redis, sql, token, traces, *hashes):
        assert secret not in shown
    found = rows(settings)
    for name in ("stream_token_secret", "keys.a.sha256", "keys.a.signing_key", "workers.w.sha256"):
        assert found[name].value == "(set)"
    assert found["keys.b.signing_key"].value is None
    assert found["redis_url"].value == "rediss://***@db:6379/0?***"
