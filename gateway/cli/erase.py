"""`fairlane user erase`: removes what is stored of a user, in as many requests as it takes."""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlane.gateway.cli.client import Gateway, warn
from fairlane.workers.options import expanded

MAX_WAITS = 40
"""Requests in a row that wait for batches or tasks to end, three or four seconds each."""
_STATUS = ("ledger", "unended", "stopping", "more")


@expanded
def erase(
    user: Annotated[str, typer.Argument(help="As the task list names it, such as site/ann.")],
    gateway: Gateway,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase a user's stored results, files, batches and webhooks, and their name in usage records and the audit log. Batches are
    cancelled; other tasks continue, so cancel them first. The ledger keeps the name. Exit code 1: run it again.

    fairlane task cancel --user site/ann

    fairlane user erase site/ann
    """
    if not yes:
        typer.confirm(f"Erase {user} and cancel their batches? This cannot be undone.", abort=True, err=True)
    erased: dict[str, int] = {}
    answer: dict[str, Any] = {"more": True}
    waits = 0
    while answer["more"] and waits < MAX_WAITS:
        answer = gateway.request(f"/api/admin/users/{quote(user, safe='')}", "DELETE").json()
        waits = waits + 1 if answer["unended"] or answer["stopping"] else 0
        counts = {name: count for name, count in answer.items() if name not in _STATUS and type(count) is int}
        erased = {name: erased.get(name, 0) + count for name, count in counts.items()}
    if gateway.as_json:
        typer.echo(json.dumps({**erased, **{name: answer[name] for name in _STATUS}}))
    else:
        for name, count in erased.items():
            typer.echo(f"{count} {name}")
        typer.echo(f"{answer['ledger']} rows of the ledger keep the name")
    if answer["more"]:
        warn(
            f"{answer['unended']} batches and {answer['stopping']} tasks are cancelled and have not ended: run this again"
        )
        raise typer.Exit(1)
