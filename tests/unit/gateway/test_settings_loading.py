"""Where settings come from, what wins, and how mistakes are named."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairlane.gateway.settings import Settings, SettingsError, external_name, external_value, load_settings
from fairlane.gateway.settings.sources import SEED_NAMES


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    if text is not None:
        Path("fairlane.yaml").write_text(text, encoding="utf-8")
    settings, warnings = load_settings(None, overrides or {}, environ or {})
    assert warnings == []
    return settings


def problems(
    text: str | None = None, environ: Mapping[str, str] | None = None, **overrides: Any
) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(text, environ, overrides)
    return [str(problem) for problem in raised.value.problems]


def test_nothing_given_means_defaults() -> None:
    assert load() == Settings()
    assert load("") == Settings()


def test_flag_beats_variable_beats_file_beats_default() -> None:
    text = "port: 1\nprocesses: 2\nlease: 20s\n"
    environ = {"FAIRLANE_PORT": "3", "FAIRLANE_PROCESSES": "4"}
    settings = load(text, environ, {"port": 5, "processes": None})
    assert (settings.port, settings.processes, settings.lease_ms) == (5, 4, 20_000)


def test_own_name_beats_the_name_without_prefix_beats_the_file() -> None:
    environ = {"TASK_TIMEOUT_MS": "7000", "MAX_QUEUE_LENGTH": "70", "FAIRLANE_MAX_QUEUE_LENGTH": "80"}
    settings = load("task_timeout: 9s\n", environ)
    assert (settings.task_timeout_ms, settings.max_queue_length) == (7000, 80)


def test_named_file_is_read_and_must_exist(tmp_path: Path) -> None:
    named = tmp_path / "other.yaml"
    with pytest.raises(SettingsError, match=r"other\.yaml: there is no such file"):
        load_settings(named, {}, {})
    named.write_text("port: 1\n")
    Path("fairlane.yaml").write_text("port: 2\n")
    assert load_settings(named, {}, {})[0].port == 1


def test_example_of_the_documentation_loads() -> None:
    sha = "0123456789abcdef" * 4
    settings = load(f"""
models:
  deepseek-chat: {{concurrency: 8, cost: tokens}}
queues:
  paid_stream: {{weight: 8, max_length: 1000, max_wait: 30s}}
keys:
  - {{id: acme, tier: paid, sha256: "{sha}"}}
  - {{id: site, delegating: true, sha256: "{sha[::-1]}"}}
  - {{id: ops, scopes: [admin], sha256: "{"0" * 64}"}}
workers:
  - {{id: gpu-1, sha256: "{"1" * 64}", models: ["*"]}}
""")
    assert settings.models["deepseek-chat"].concurrency == 8
    assert settings.queues["paid_stream"].max_wait_ms == 30_000
    assert [key.id for key in settings.keys] == ["acme", "site", "ops"]
    assert settings.workers[0].models == ["*"]


def test_nested_variables_reach_queues_and_models() -> None:
    environ = {
        "FAIRLANE_QUEUES__PAID_STREAM__WEIGHT": "16",
        "FAIRLANE_QUEUES__PAID_STREAM__MAX_LENGTH": "none",
        "FAIRLANE_MODELS__DEEPSEEK_CHAT__CONCURRENCY": "4",
    }
    text = "models: {deepseek-chat: {cost: requests}}\nqueues: {paid_stream: {max_length: 7}}\n"
    settings = load(text, environ)
    assert settings.queues["paid_stream"].weight == 16
    assert settings.queues["paid_stream"].max_length is None
    assert settings.models.keys() == {"deepseek-chat"}
    assert (settings.model("deepseek-chat").concurrency, settings.model("deepseek-chat").cost) == (
        4,
        "requests",
    )


def test_every_limit_of_a_queue_and_a_model_has_its_variable() -> None:
    queue = {"MAX_LENGTH": 9, "MAX_WAIT": "8ms", "MAX_RUNNING": 7, "RESERVED": 3, "ADMISSION": "adaptive"}
    model = {
        "CONCURRENCY": 6,
        "COST": "slot_seconds",
        "REQUESTS_PER_MINUTE": 60,
        "TOKENS_PER_MINUTE": 100_000_000,
        "MAX_RUNNING_PER_USER": 2,
        "MAX_WAITING_PER_USER": 20,
        "FALLBACK_AFTER": "5s",
    }
    environ = {f"FAIRLANE_QUEUES__PAID_STREAM__{name}": str(value) for name, value in queue.items()}
    environ |= {f"FAIRLANE_MODELS__M__{name}": str(value) for name, value in model.items()}
    settings = load(None, environ)
    shown = settings.queues["paid_stream"].model_dump(mode="json")
    assert {name.upper(): value for name, value in shown.items() if name.upper() in queue} == queue
    shown = settings.models["m"].model_dump(mode="json", exclude_defaults=True)
    assert {name.upper(): value for name, value in shown.items()} == model
    environ = {f"FAIRLANE_MODELS__{name}__CONCURRENCY": "1" for name in "BC"}
    environ["FAIRLANE_MODELS__M__FALLBACKS"] = "b, c"
    assert load(None, environ).models["m"].fallbacks == ["b", "c"]


def test_a_group_of_which_there_is_one_is_set_by_file_and_variables() -> None:
    assert load("responses: {ttl: 5s}\n", {"FAIRLANE_RESPONSES__TTL": "7s"}).responses.ttl_ms == 7000
    assert load(None, {"FAIRLANE_RESPONSES__TTL": "0"}).responses.ttl_ms == 0
    assert problems("responses: {tt: 5s}\n") == [
        "fairlane.yaml: responses.tt: unknown setting; did you mean ttl?"
    ]
    assert problems(None, {"FAIRLANE_RESPONSES__TTL": "soon"})[0].startswith("FAIRLANE_RESPONSES__TTL: ")
    assert "set responses in the file" in problems(None, {"FAIRLANE_RESPONSES__TTL__X": "1"})[0]


def test_lists_are_written_with_commas() -> None:
    environ = {"FAIRLANE_CORS_ORIGINS": "https://a.example, https://b.example"}
    assert load(None, environ).cors_origins == ["https://a.example", "https://b.example"]


def test_empty_variables_count_as_not_set() -> None:
    assert load(None, {"FAIRLANE_REDIS_URL": "", "TASK_TIMEOUT_MS": ""}) == Settings()


def test_variables_that_kubernetes_sets_for_a_service_named_fairlane_are_no_settings() -> None:
    environ = {
        "FAIRLANE_SERVICE_HOST": "10.0.0.1",
        "FAIRLANE_SERVICE_PORT": "8080",
        "FAIRLANE_SERVICE_PORT_HTTP": "8080",
        "FAIRLANE_PORT": "tcp://10.0.0.1:8080",
        "FAIRLANE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "FAIRLANE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "FAIRLANE_GATEWAY_PORT": "tcp://10.0.0.2:8080",
    }
    assert load(None, environ) == Settings()


def test_variables_of_workers_callers_and_command_line_are_no_settings() -> None:
    names = ("GATEWAY", "KEY", "WORKER_TOKEN", "API_KEY")
    assert load(None, {f"FAIRLANE_{name}": "x" for name in names}) == Settings()


def test_every_mistake_is_named_with_its_place() -> None:
    text = """
prot: 80
queues:
  paid_stream: {wieght: 8}
  vip_stream: {tier: vip}
models:
  m: {cost: euros}
keys:
  - {id: a, sha256: "12", teir: paid}
"""
    environ = {"FAIRLANE_LEASE": "soon", "FAIRLANE_MAX_QUEUE": "3"}
    found = problems(text, environ, port="http")
    for place, message in [
        ("fairlane.yaml: prot", "unknown setting; did you mean port?"),
        ("fairlane.yaml: queues.paid_stream.wieght", "unknown setting; did you mean weight?"),
        ("fairlane.yaml: queues.vip_stream.mode", "is required"),
        ("fairlane.yaml: models.m.cost", "'tokens', 'requests' or 'slot_seconds'; got 'euros'"),
        ("fairlane.yaml: keys[0].teir", "unknown setting; did you mean tier?"),
        ("fairlane.yaml: keys[0].sha256", "match pattern"),
        ("FAIRLANE_LEASE", "should be a duration such as 500ms"),
        ("FAIRLANE_MAX_QUEUE", "unknown setting; did you mean FAIRLANE_MAX_QUEUE"),
        ("--port", "valid integer"),
    ]:
        assert any(line.startswith(place + ": ") and message in line for line in found), (place, found)
    assert len(found) == 9


def test_nested_variable_is_named_when_it_is_wrong() -> None:
    environ = {
        "FAIRLANE_QUEUES__PAID_STREAM__WIEGHT": "1",
        "FAIRLANE_QUEUES__VIP_STREAM__WEIGHT": "1",
        "FAIRLANE_PORT__X": "1",
        "FAIRLANE_KEYS__0__ID": "a",
    }
    found = problems(None, environ)
    assert "FAIRLANE_QUEUES__PAID_STREAM__WIEGHT: unknown setting; did you mean weight?" in found
    assert any(
        line.startswith("FAIRLANE_QUEUES__VIP_STREAM__WEIGHT (queues.vip_stream.tier)") for line in found
    )
    assert "FAIRLANE_KEYS__0__ID: is not a variable; set keys in the file" in found
    assert any(line.startswith("FAIRLANE_PORT__X: is not a variable") for line in found)


def test_contradiction_names_all_places_that_caused_it() -> None:
    found = problems("max_task_timeout: 1s\n", {"FAIRLANE_MIN_TASK_TIMEOUT": "2s"})
    assert found == [
        "FAIRLANE_MIN_TASK_TIMEOUT, fairlane.yaml: max_task_timeout: "
        "min_task_timeout (2s) is above max_task_timeout (1s)"
    ]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("queues: {paid_stream: {reserved: 2}}", "queues.paid_stream.reserved is 2, but no model has a conc"),
        (
            "queues: {paid_stream: {reserved: 2}, free_stream: {reserved: 2}}\nmodels: {m: {concurrency: 3}}",
            "models.m.concurrency is 3, but the queues reserve 4 slots of it together",
        ),
        (
            "queues: {paid_stream: {admission: adaptive}}",
            "queues.paid_stream.admission is adaptive without a max_wait or max_queue_wait: "
            "a task is rejected only when the predicted wait exceeds its caller's own deadline",
        ),
        ("queues: {paid_stream: {reserved: 2}}\nmodels: {m: {concurrency: 3}}", None),
        ("max_queue_wait: 9s\nqueues: {paid_stream: {admission: adaptive}}", None),
        ("queues: {paid_stream: {admission: adaptive, max_wait: 9s}}", None),
    ],
)
def test_what_may_not_do_what_was_meant_is_noted_and_works(text: str, note: str | None) -> None:
    Path("fairlane.yaml").write_text(text)
    _, warnings = load_settings(None, {}, {})
    assert len(warnings) == (1 if note else 0)
    assert not note or warnings[0].startswith(note)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: [", "line 1: not valid YAML"),
        ("- 1\n", "must hold settings by name"),
        ("port: 1\nport: 2\n", "line 2: not valid YAML ('port' is given twice)"),
        ("port: !!python/object:os.system {}\n", "not valid YAML"),
        ("a: &a [*a]\n", "unknown setting"),
    ],
)
def test_broken_files_are_explained(text: str, message: str) -> None:
    assert any(message in line for line in problems(text))


def test_file_that_is_no_text_is_explained() -> None:
    Path("fairlane.yaml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in problems()[0]


def test_messages_do_not_repeat_secrets() -> None:
    environ = {"FAIRLANE_REDIS_URL": "http://:hunter2@db", "FAIRLANE_STREAM_TOKEN_SECRET": "hunter2"}
    assert "hunter2" not in "\n".join(problems("keys: [{id: k, sha256: hunter2}]", environ))


@pytest.mark.parametrize(("variable", "setting"), SEED_NAMES.items())
def test_invalid_value_of_a_name_without_prefix_warns_and_falls_back(variable: str, setting: str) -> None:
    settings, warnings = load_settings(None, {}, {variable: "abc"})
    assert settings == Settings()
    default = external_value(setting, getattr(Settings(), setting))
    [warning] = warnings
    assert f"{variable}='abc' is ignored" in warning
    assert warning.endswith(f"{external_name(setting)} is {'not set' if default is None else default}")


@pytest.mark.parametrize(("variable", "setting"), SEED_NAMES.items())
def test_valid_value_of_a_name_without_prefix_is_used(variable: str, setting: str) -> None:
    text: str = {"llm_debug": "true", "otlp_endpoint": "http://collector:4318"}.get(setting, "30000")
    if variable in ("STREAM_TTL_SECONDS", "STREAM_FLUSH_INTERVAL_MS", "STREAM_FLUSH_SIZE"):
        text = "90"
    settings, warnings = load_settings(None, {}, {variable: text})
    assert warnings == []
    wanted = int(text) * (1000 if variable == "STREAM_TTL_SECONDS" else 1) if text.isdecimal() else text
    assert getattr(settings, setting) == {"true": True}.get(text, wanted)


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "NaN", "Infinity", "60s", "9" * 5000])
def test_numbers_that_make_no_sense_warn_and_fall_back(text: str) -> None:
    for variable in ("TASK_TIMEOUT_MS", "STREAM_TTL_SECONDS"):
        settings, warnings = load_settings(None, {}, {variable: text})
        assert settings == Settings()
        assert len(warnings) == 1
        assert len(warnings[0]) < 400


def test_first_of_two_names_for_the_same_setting_counts() -> None:
    settings = load(None, {"MAX_QUEUE_LENGTH": "5", "QUEUE_MAX_SIZE": "6", "STREAM_TTL_SECONDS": "60"})
    assert (settings.max_queue_length, settings.task_result_ttl_ms) == (5, 60_000)


def test_invalid_name_without_prefix_falls_back_to_the_file_before_the_default() -> None:
    Path("fairlane.yaml").write_text("task_timeout: 9s\n")
    settings, warnings = load_settings(None, {}, {"TASK_TIMEOUT_MS": "x"})
    assert settings.task_timeout_ms == 9000
    assert warnings[0].endswith("task_timeout is 9s")


def test_name_without_prefix_that_contradicts_another_setting_warns_and_falls_back() -> None:
    settings, warnings = load_settings(None, {}, {"MIN_TASK_TIMEOUT_MS": "700000", "MAX_QUEUE_LENGTH": "5"})
    assert settings.min_task_timeout_ms == 5000
    assert settings.max_queue_length == 5
    assert [warning.split("=")[0] for warning in warnings] == ["MIN_TASK_TIMEOUT_MS"]


def test_settings_are_as_old_as_their_file_and_never_of_the_future(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("port: 81\n")
    for modified_s, expected in ((1_700_000_000, 1_700_000_000_000), (9_000_000_000, None)):
        os.utime(file, (modified_s, modified_s))
        settings, _ = load_settings(file, {}, {})
        assert settings.origins.modified_ms == (expected or settings.origins.read_ms)
    alone = Settings()
    assert alone.origins.modified_ms == alone.origins.read_ms >= settings.origins.read_ms
    assert alone.model_copy(update={"port": 82}).origins is alone.origins


HASH = f"a{'1' * 63}"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"keys: [{{id: a, sha256: {HASH}, delegating: true, signing: true, signing_key: {HASH}}}]", True),
        ("endpoints: {e: {url: 'https://a.example/', concurrency: 1, set_headers: {x-key: s}}}", True),
        ("stream_token_secret: a-secret-of-some-length", True),
        ("redis_url: redis://fairlane:hunter2@redis:6379/0", True),
        ("database_url: postgresql://fairlane:hunter2@db/fairlane", True),
        (f"keys: [{{id: a, sha256: {HASH}}}]", False),
        ("redis_url: redis://redis:6379/0?ssl_ca_certs=/etc/ca.pem", False),
    ],
)
def test_a_file_with_secrets_that_everybody_can_read_is_named(
    tmp_path: Path, text: str, secret: bool
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    for mode, warns in ((0o644, secret), (0o640, False), (0o600, False)):
        file.chmod(mode)
        warnings = load_settings(file, {}, {})[1]
        assert any(f"chmod 640 {file}" in warning for warning in warnings) == warns
        assert "hunter2" not in str(warnings)
