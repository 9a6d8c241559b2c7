"""What supervisors are told (compose.yaml, deploy/) fits what the program does: tasks may finish before anything is killed."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fairlane.gateway.cli.main import app
from fairlane.gateway.settings import Settings
from fairlane.workers.sdk import Worker

ROOT = Path(__file__).parents[2]
SYSTEMD = shutil.which("systemd-analyze")
DRAIN_S = max(Settings().drain_ms, Worker().drain_ms) / 1000
REST_S = 15
"""What the way down takes besides: sockets that close, Redis that stops."""


class _Compose(yaml.SafeLoader):
    """Knows Compose's own tag that takes a value of the file before away."""


_Compose.add_constructor("!reset", lambda loader, node: None)

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "deploy/kubernetes/fairlane.yaml").read_text())
)
PODS = [one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] == "Deployment"]


def service(file: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / file)
    return parser["Service"]


@pytest.fixture
def unit() -> configparser.SectionProxy:
    return service("deploy/systemd/fairlane.service")


@pytest.fixture
def worker_unit() -> configparser.SectionProxy:
    return service("examples/paid-free/worker.service")


def test_docker_gives_gateways_and_workers_the_time_to_finish() -> None:
    ours = {name: one for name, one in SERVICES.items() if one["image"] == "fairlane:local"}
    assert len(ours) == 4
    for name, one in ours.items():
        assert int(one["stop_grace_period"].removesuffix("s")) >= DRAIN_S + REST_S, name


def test_docker_builds_the_image_wherever_it_is_named() -> None:
    for name, one in SERVICES.items():
        assert (one["image"] == "fairlane:local") is ("build" in one), (
            name
        )  # else it is looked for in a registry


def compose_files() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml and of what may be laid over it, by file."""
    over = sorted((ROOT / "deploy/compose").glob("*.yaml"))
    assert over
    return {
        file.name: yaml.load(file.read_text(), Loader=_Compose)["services"]
        for file in (ROOT / "compose.yaml", *over)
    }


def test_docker_makes_no_folder_of_a_file_that_is_missing() -> None:
    seen = 0
    for file, services in compose_files().items():
        for name, one in services.items():
            for volume in one.get("volumes", []):
                if isinstance(volume, dict):
                    assert volume["bind"] == {"create_host_path": False}, (file, name)
                    source = ROOT / volume["source"]
                    yours = ("fairlane.yaml", "tls")
                    assert source.exists() or source.name in yours, source
                    seen += 1
                else:
                    assert not volume.startswith("."), (file, name)
    assert seen >= 4


def test_what_stands_beside_the_gateways_knows_their_names() -> None:
    gateways = {name for name in SERVICES if name.startswith("gateway-")}
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (targets,) = [one["targets"] for one in prometheus["scrape_configs"][0]["static_configs"]]
    nginx = (ROOT / "deploy/compose/nginx.conf").read_text()
    assert {target.removesuffix(":8080") for target in targets} == gateways
    assert set(re.findall(r"server ([\w-]+):8080", nginx)) == gateways
    tls = compose_files()["tls.yaml"]
    assert {name for name in tls if name in SERVICES} == gateways  # reached through nginx alone
    assert all(tls[name] == {"ports": None} for name in gateways)


def test_workers_cannot_reach_the_stores() -> None:
    """Redis holds prompts, and the secret of stream links."""
    networks = {name: set(one.get("networks", ["default"])) for name, one in SERVICES.items()}
    assert networks["redis"] == networks["postgres"] == {"store"}
    for name, on in networks.items():
        assert name in ("redis", "postgres") or ("store" in on) is name.startswith("gateway-"), name
    assert yaml.safe_load((ROOT / "compose.yaml").read_text())["networks"]["store"] == {"internal": True}
    assert "--requirepass" in SERVICES["redis"]["command"]


def test_docker_asks_no_worker_for_its_health() -> None:
    for name, one in SERVICES.items():
        if one.get("command", [""])[0] == "worker":
            assert one["healthcheck"] == {"disable": True}, name


def test_systemd_stops_the_gateway_first_and_waits_for_it(unit: configparser.SectionProxy) -> None:
    assert unit["KillMode"] == "mixed"  # not its Redis at the same time
    assert int(unit["TimeoutStopSec"]) >= DRAIN_S + REST_S


@pytest.mark.skipif(SYSTEMD is None, reason="no systemd on this machine")
@pytest.mark.parametrize("file", ["deploy/systemd/fairlane.service", "examples/paid-free/worker.service"])
def test_systemd_gives_a_service_no_more_than_it_needs(file: str) -> None:
    command = [str(SYSTEMD), "security", "--offline=yes", "--threshold=15", file]
    rated = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout.splitlines()[-1:]


def test_systemd_waits_for_a_workers_tasks(worker_unit: configparser.SectionProxy) -> None:
    words = shlex.split(worker_unit["ExecStart"])
    drain_s = int(words[words.index("--drain-ms") + 1]) / 1000
    assert int(worker_unit["TimeoutStopSec"]) >= drain_s + REST_S


def test_kubernetes_waits_for_the_tasks_and_asks_paths_that_are_there() -> None:
    assert len(PODS) == 2
    for pod in PODS:
        (container,) = pod["containers"]
        before = int(
            container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0, "0"])[1]
        )
        assert pod["terminationGracePeriodSeconds"] >= before + DRAIN_S + REST_S
        for probe in ("readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["path"] in ("/readyz", "/livez")
                assert container[probe]["httpGet"]["port"] in [port["name"] for port in container["ports"]]


def test_the_commands_in_them_exist(
    unit: configparser.SectionProxy, worker_unit: configparser.SectionProxy
) -> None:
    commands = [one["command"] for one in SERVICES.values() if one["image"] == "fairlane:local"]
    commands += [pod["containers"][0]["args"] for pod in PODS]
    commands += [shlex.split(one["ExecStart"])[1:] for one in (unit, worker_unit)]
    for command in commands:
        words = command[: 2 if command[0] == "worker" else 1]
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, command
        for option in command:
            assert not option.startswith("--") or option in shown.output, command
