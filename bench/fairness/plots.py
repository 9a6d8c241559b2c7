"""Plots of cumulative service per client: one picture per workload, one panel per policy."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.fairness.comparison import FAIRLANE, Row
from bench.fairness.measures import curves

POLICIES = ("FCFS", "VTC", FAIRLANE)
POINTS = 60
FEW = 8
"""Up to this number, each client has its own colour and an entry in the legend."""


def plot(row: Row, path: Path) -> None:
    """Write the picture of a workload as SVG."""
    length_s = row.workload.measured_s
    step_s = length_s / POINTS
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        panels = figure.subplots(1, len(POLICIES), sharey=True)
        for panel, policy in zip(panels, POLICIES, strict=True):
            lines = curves(row.runs[policy], length_s, step_s)
            for n, (client, values) in enumerate(lines.items()):
                few = len(lines) <= FEW
                panel.plot(
                    [at * step_s for at in range(len(values))],
                    [value / 1000 for value in values],
                    color=f"C{n}" if few else mpl.colormaps["viridis"](n / len(lines)),
                    linewidth=1.4 if few else 0.8,
                    label=client,
                )
            panel.set_title(policy, fontsize=10)
            panel.set_xlabel("s")
            panel.grid(linewidth=0.3)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("service, 1,000 tokens")
        if len(lines) <= FEW:
            panels[0].legend(frameon=False, fontsize=8)
        figure.savefig(path, format="svg")
