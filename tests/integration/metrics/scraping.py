"""Scrapes a gateway as Prometheus does, and looks samples up."""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx2
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.support.serving import until

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Scrape:
    """The samples of one answer, by name."""

    samples: dict[str, list[tuple[Labels, float]]]
    types: dict[str, str]

    def value(self, name: str, **labels: str) -> float:
        """The only sample of a name with these labels (and any others). Fails when there is none, or more."""
        [value] = self.values(name, **labels)
        return value

    def values(self, name: str, **labels: str) -> list[float]:
        """All samples of a name with these labels."""
        return [
            value
            for found, value in self.samples.get(name, [])
            if all(found.get(label) == wanted for label, wanted in labels.items())
        ]


def parse(text: str, *, strict: bool = False) -> Scrape:
    """The samples of a scrape. `strict`: as OpenMetrics, which must be right in every detail."""
    families = list(
        openmetrics.text_string_to_metric_families(text) if strict else text_string_to_metric_families(text)
    )
    samples: dict[str, list[tuple[Labels, float]]] = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return Scrape(samples, {family.name: family.type for family in families})


async def scrape(http: httpx2.AsyncClient, *, strict: bool = False) -> Scrape:
    """What /metrics says."""
    answer = await http.get("/metrics", headers={"Accept": OPENMETRICS} if strict else {})
    assert answer.status_code == 200, answer.text
    return parse(answer.text, strict=strict)


async def scrape_when(http: httpx2.AsyncClient, value: float, name: str, **labels: str) -> Scrape:
    """What /metrics says once a sample has this value: what comes from the store may be a second old."""
    seen: list[Scrape] = []

    async def has_come() -> bool:
        seen.append(await scrape(http))
        return seen[-1].values(name, **labels) == [value]

    await until(has_come, f"{name} = {value}")
    return seen[-1]
