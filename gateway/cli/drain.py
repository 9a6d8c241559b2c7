"""`fairlane worker drain`, apart from the table: `fairlane worker` imports no more than a worker needs."""

import re
from typing import Annotated
from urllib.parse import quote

import typer

from fairlane.gateway.cli.client import Gateway, decoded, stop
from fairlane.workers.options import expanded


@expanded
def drain(
    worker: Annotated[str, typer.Argument(help="Its name or id, as `fairlane status` shows it.")],
    gateway: Gateway,
) -> None:
    """Give a worker no more tasks. Its running tasks finish."""
    path = f"/api/admin/workers/{quote(worker_id(gateway, worker), safe='')}/drain"
    response = gateway.request(path, "POST")
    answer = decoded(response)
    text = f"{answer['name'] or answer['workerId']} is draining"
    typer.echo(response.text if gateway.as_json else text)


def worker_id(gateway: Gateway, worker: str) -> str:
    """Return the id of the connected worker with this name or id; an id that no connected worker has is returned as it is."""
    rows = decoded(gateway.request("/api/admin/overview"))["workers"]
    ids = [row["workerId"] for row in rows if worker in (row["workerId"], row["name"])]
    if not ids and re.fullmatch(r"[0-9a-f]{16}", worker):
        return worker
    if not ids:
        known = ", ".join(row["name"] or row["workerId"] for row in rows)
        stop(f"no worker {worker!r} is connected; there are {known or 'none'}")
    if len(ids) > 1:
        stop(f"{len(ids)} workers have this name; give one of their ids: {', '.join(ids)}")
    return str(ids[0])
