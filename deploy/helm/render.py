"""Lints the chart, renders it with its example values, and writes ../kubernetes/fairlane.yaml, for those without Helm.

    python deploy/helm/render.py

Uses the `helm` command, or the same engine as a Python package (`pip install helm-python-sdk`, Linux). The first line of the
result names the chart that it was made of by a hash, so that a test notices a chart that was changed and not rendered again.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CHART = HERE / "fairlane"
VALUES = CHART / "example-values.yaml"
MANIFESTS = HERE.parent / "kubernetes" / "fairlane.yaml"
RELEASE = "fairlane"
HEAD = """\
# Two gateways and a simulated worker, rendered from deploy/helm (chart {hash}): python deploy/helm/render.py
# The image is the Dockerfile's: write the name that you gave it for fairlane:0.1.0, which stands here twice.
# Redis and PostgreSQL are yours. Make keys (`fairlane key create --print`), put their hashes into fairlane.yaml, then:
#   kubectl create secret generic fairlane --from-file=fairlane.yaml --from-literal=redis-url=redis://PUT_YOURS_HERE \\
#     --from-literal=database-url=postgresql://PUT_YOURS_HERE --from-literal=worker-token=flw_PUT_YOURS_HERE
"""


def chart_hash() -> str:
    """What the chart's files are, in 12 hex digits."""
    digest = hashlib.sha256()
    for file in sorted(CHART.rglob("*")):
        if file.is_file():
            digest.update(f"{file.relative_to(CHART)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def render() -> str:
    """The manifests, as `helm template` prints them. Raises what the engine raises for a chart with mistakes."""
    if shutil.which("helm"):
        subprocess.run(["helm", "lint", "--strict", CHART, "-f", VALUES], check=True, stdout=sys.stderr)
        command = ["helm", "template", RELEASE, CHART, "-f", VALUES]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    import yaml  # noqa: PLC0415
    from helm_python.chart import Chart, lint  # noqa: PLC0415

    values = yaml.safe_load(VALUES.read_text())
    report = lint(CHART, values, strict=True)
    if report["errors"] or any(message["severity"] > 1 for message in report["messages"]):
        raise SystemExit(f"helm lint: {report}")
    with Chart.load(CHART) as chart:
        rendered = chart.render(values, name=RELEASE, namespace="default")
    parts = [rendered[name] for name in sorted(rendered) if name.endswith(".yaml") and rendered[name].strip()]
    return "".join(f"---\n{part.strip().removeprefix('---').strip()}\n" for part in parts)


if __name__ == "__main__":
    MANIFESTS.write_text(HEAD.format(hash=chart_hash()) + render())
    print(f"{MANIFESTS}: chart {chart_hash()}")
