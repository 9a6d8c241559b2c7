"""The Helm chart: what is rendered of it is kept in the repository, and with Helm's engine at hand all of it is rendered anew."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fairlane import __version__
from fairlane.gateway.settings import load_settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/fairlane"
MANIFESTS = ROOT / "deploy/kubernetes/fairlane.yaml"
ONE, TWO = "01" * 32, "02" * 32
SETTINGS = {"keys": [{"id": "app", "sha256": ONE}], "workers": [{"id": "gpu-1", "sha256": TWO}]}
STORES = {
    "redis": {"url": "redis://redis:6379/0"},
    "database": {"url": "postgresql://fairlane@postgres/fairlane"},
}


@pytest.fixture(scope="module")
def renderer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", ROOT / "deploy/helm/render.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_manifests_are_those_of_the_chart(renderer: ModuleType) -> None:
    told = re.search(r"\(chart ([0-9a-f]{12})\)", MANIFESTS.read_text())
    assert told
    assert told[1] == renderer.chart_hash(), "the chart has changed: python deploy/helm/render.py"


def test_the_chart_is_of_this_release_and_its_values_are_those_of_its_schema() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert values.keys() == schema.keys() - {"global"}
    for name, value in values.items():
        if "properties" in schema[name]:
            assert value.keys() == schema[name]["properties"].keys(), name


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    engine = pytest.importorskip("helm_python.chart", reason="Helm's engine: pip install helm-python-sdk")
    with engine.Chart.load(CHART) as chart:
        parts = chart.render(values, name="llm", namespace="default")
        chart.validate_schema(values)
    texts = [text for name, text in parts.items() if name.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def test_settings_of_the_chart_are_settings_of_the_gateway(tmp_path: Path) -> None:
    (secret,) = [one for one in rendered({**STORES, "settings": SETTINGS}) if one["kind"] == "Secret"]
    (tmp_path / "fairlane.yaml").write_text(secret["stringData"]["fairlane.yaml"])
    settings, _ = load_settings(tmp_path / "fairlane.yaml", {}, {})
    assert (settings.keys[0].id, settings.workers[0].id) == ("app", "gpu-1")


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({"settings": SETTINGS}, "redis.url"),
        ({"redis": STORES["redis"], "settings": SETTINGS}, "database.url"),
        (STORES, "settings.keys"),
        (
            {
                **STORES,
                "settings": SETTINGS,
                "workers": {"a": {"args": ["worker", "start", "--provider", "echo"]}},
            },
            "workerToken.secretName",
        ),
    ],
)
def test_what_cannot_work_is_named(values: dict[str, Any], missing: str) -> None:
    with pytest.raises(Exception, match=missing):
        rendered(values)


def test_grace_periods_follow_the_time_to_drain() -> None:
    values = {
        **STORES,
        "settings": SETTINGS,
        "gateway": {"drainMs": 600_000},
        "ingress": {"enabled": True, "tlsSecretName": "tls"},
        "workerToken": {"secretName": "token"},
        "workers": {"a": {"args": ["worker", "start", "--provider", "echo"], "drainMs": 0, "replicas": 0}},
    }
    objects = {(one["kind"], one["metadata"]["name"]): one for one in rendered(values)}
    gateway, worker = objects["Deployment", "llm-fairlane"], objects["Deployment", "llm-fairlane-worker-a"]
    assert gateway["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 620
    assert (
        worker["spec"]["replicas"],
        worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
    ) == (0, 15)
    backend = objects["Ingress", "llm-fairlane"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert (backend["name"], backend["port"]["name"]) == (
        "llm-fairlane",
        objects["Service", "llm-fairlane"]["spec"]["ports"][0]["name"],
    )


def by_kind(**values: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    worker = {"args": ["worker", "start", "--provider", "echo"]}
    workers = {"one": worker, "two": {**worker, "replicas": 2}}
    token = {"secretName": "token"}
    for one in rendered({**STORES, "settings": SETTINGS, "workers": workers, "workerToken": token, **values}):
        found.setdefault(one["kind"], []).append(one)
    return found


def names(objects: list[dict[str, Any]]) -> set[str]:
    return {one["metadata"]["name"].removeprefix("llm-fairlane") for one in objects}


def test_a_single_replica_has_no_disruption_budget() -> None:
    assert names(by_kind()["PodDisruptionBudget"]) == {"", "-worker-two"}
    assert names(by_kind(gateway={"replicas": 1})["PodDisruptionBudget"]) == {"-worker-two"}


def test_gateways_scale_by_their_load() -> None:
    objects = by_kind(autoscaling={"enabled": True, "minReplicas": 1, "maxReplicas": 4})
    (scaler,) = objects["HorizontalPodAutoscaler"]
    (gateway,) = [one for one in objects["Deployment"] if one["metadata"]["name"] == "llm-fairlane"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 4)
    assert "replicas" not in gateway["spec"]
    assert names(objects["PodDisruptionBudget"]) == {"-worker-two"}


def test_pods_have_resources_probes_and_places() -> None:
    for one in by_kind()["Deployment"]:
        pod = one["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"]["memory"], one["metadata"]["name"]
        if one["metadata"]["name"] == "llm-fairlane":
            assert pod["containers"][0]["startupProbe"]["httpGet"]["path"] == "/livez"
            assert len(pod["topologySpreadConstraints"]) == 2


def test_an_image_is_pinned_by_its_digest() -> None:
    digest = "sha256:" + "0a" * 32
    image = {"repository": "registry/fairlane", "tag": "0.1.0", "digest": digest}
    for one in by_kind(image=image)["Deployment"]:
        assert one["spec"]["template"]["spec"]["containers"][0]["image"] == f"registry/fairlane@{digest}"


def test_prometheus_finds_gateways_and_alerts() -> None:
    monitor = {"enabled": True, "secretName": "metrics"}
    objects = by_kind(metrics={"serviceMonitor": monitor, "prometheusRule": {"enabled": True}})
    (endpoint,) = objects["ServiceMonitor"][0]["spec"]["endpoints"]
    (service,) = objects["Service"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    rules = yaml.safe_load((ROOT / "deploy/prometheus/fairlane.rules.yml").read_text())
    assert objects["PrometheusRule"][0]["spec"] == rules


def test_only_gateways_reach_the_stores() -> None:
    store = {"podSelector": {"matchLabels": {"app": "redis"}}, "port": 6379}
    objects = by_kind(networkPolicy={"enabled": True, "stores": [store]})
    policies = {
        one["metadata"]["name"].removeprefix("llm-fairlane-"): one["spec"] for one in objects["NetworkPolicy"]
    }
    assert policies.keys() == {"gateway", "worker", "store-0"}
    (rule,) = policies["store-0"]["ingress"]
    assert rule["from"] == [{"podSelector": policies["gateway"]["podSelector"]}]
    assert policies["worker"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policies["worker"]
