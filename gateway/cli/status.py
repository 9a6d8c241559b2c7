"""`fairlane status`: problems, counts, queues, models, workers and replicas of a running gateway."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from fairlane.gateway.cli.client import Gateway, decoded
from fairlane.gateway.cli.tables import Column, plain, print_table
from fairlane.gateway.errors import duration
from fairlane.workers.options import expanded

SILENT_MS = 60_000
"""A worker is reported if one of its tasks has shown no sign of life for this long."""
TABLES = {
    "queues": "queue weight waiting running oldest=oldestWaitMs:duration max_length=maxLength max_wait=maxWaitMs:duration paused",
    "models": "model running limit waiting workers slots paused",
    "workers": "worker=name id=workerId replica running slots silent=taskSilentMs:duration models "
    "last_seen=heartbeatAgeMs:duration draining unhealthy quirks=tags.quirks",
    "replicas": "replica host pid version last_seen=ageMs:duration",
}


@expanded
def status(gateway: Gateway) -> None:
    """Show problems, queues, models, workers and replicas."""
    answer = gateway.request("/api/admin/overview")
    if gateway.as_json:
        typer.echo(answer.text)
        return
    state = decoded(answer)
    for problem in problems(state):
        typer.secho(plain(problem), fg="red", bold=True)
    counts = state["counts"]
    shown = [
        f"{counts.get(name, 0)} {name}"
        for name in ("queued", "executing", "completed", "failed", "cancelled")
    ]
    typer.echo("tasks: " + ", ".join(shown))
    for name, text in TABLES.items():
        columns = [Column(one) for one in text.split()]
        rows = [[column.cell(row) for column in columns] for row in state.get(name, ())]
        if rows:
            print_table([column.title for column in columns], rows)
        else:
            typer.echo(f"no {name}")


def problems(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield everything that an operator has to look at."""
    now, store, database = state["now"], state.get("store", {}), state.get("database", {})
    if store.get("rejectsWrites"):
        yield f"Redis at {store['address']} has rejected writes for {_since(store, now)}: {store['reason']}"
    if not database.get("up", True):
        yield f"the database has been unavailable for {_since(database, now)}: {database['reason']}"
    counts = state["counts"]
    if counts.get("recordsMax") is not None and counts["recordsWaiting"] >= counts["recordsMax"]:
        yield f"new tasks are rejected (OUTBOX_FULL): {counts['recordsWaiting']} records wait for the database"
    for model in state["models"]:
        if model.get("unserved"):
            yield f"{model['waiting']} tasks wait for {model['model']}, which no worker serves"
        for upstream in model.get("upstreams", ()):
            if reporter := upstream.get("cooldownBy"):
                yield f"{model['model']} through {upstream['upstream']} backs off: worker {reporter}, reports a 429"
            if upstream["breaker"] != "closed" or upstream["forced"]:
                forced = ", set by an operator" if upstream["forced"] else ""
                through = f" through {upstream['upstream']}" if upstream["upstream"] else ""
                reason = f": {upstream['reason']}" if upstream["reason"] else ""
                yield f"the breaker of {model['model']}{through} is {upstream['breaker']}{forced}{reason}"
    for worker in state["workers"]:
        name = worker.get("name") or worker["workerId"]
        if worker.get("unhealthy"):
            yield f"{name} is unhealthy: {worker['unhealthy']}"
        if (worker.get("taskSilentMs") or 0) >= SILENT_MS:
            yield f"a task on {name} has shown no output and no progress for {duration(worker['taskSilentMs'])}"
    replicas = state.get("replicas", ())
    for replica in replicas:
        if rejected := replica.get("reloadError"):
            yield f"replica {replica['replica']} rejected its new configuration: {rejected['reason']}"
        if (replica.get("configuration") or {}).get("effective") is False:
            yield f"replica {replica['replica']} has an older configuration, which is not in effect"
    yield from _differences(replicas, "keysHash", "API keys or worker tokens")
    yield from _differences(replicas, "routesHash", "routes, templates, chains, endpoints or fallbacks")


def _differences(replicas: Sequence[Mapping[str, Any]], member: str, what: str) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for replica in replicas:
        if replica.get(member):
            groups.setdefault(replica[member], []).append(replica["replica"])
    if len(groups) > 1:
        names = " | ".join(" ".join(group) for group in groups.values())
        yield f"replicas differ in {what} ({names}): give all the same file, and send SIGHUP to each"


def _since(row: Mapping[str, Any], now: float) -> str:
    return duration(round(max(now - (row.get("since") or now), 0)))
