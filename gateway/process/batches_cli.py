"""`fairlane batches`: whose batches there are, how far they are, and ending one."""

from typing import Annotated, Any

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, query_of
from fairlane.gateway.process.limits_cli import ListUnlessTold
from fairlane.gateway.process.tables import add_row, make_table, print_page, time_of

app = typer.Typer(cls=ListUnlessTold, help="Show batches: whose they are, and how far; or end one early.")


@app.command("list")
def list_batches(
    state: Annotated[
        str,
        typer.Option(
            help="Only of this status, such as in_progress or failed; `unended`: that have not ended."
        ),
    ] = "",
    caller: Annotated[str, typer.Option("--of-key", help="Only of this key, by its id.")] = "",
    user: Annotated[str, typer.Option(help="Only of this user.")] = "",
    after: Annotated[str, typer.Option(help="Go on after this one, as the last page says.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Show no more than so many.")] = 20,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show batches, the newest first. A gateway with keys wants a viewer's or an admin's.

    fairlane batches list --state unended

    fairlane batches cancel batch_019b...
    """
    wanted = {"state": state, "key": caller, "user": user, "after": after, "limit": str(limit)}
    told = ask(gateway, key, f"/api/admin/batches{query_of(wanted)}", as_json)
    if told is None:
        return
    table = make_table(
        *("batch", "user", "status", "call", "model", "lines", "completed", "failed"),
        *("waiting", "running", "created", "ends by", "waits for, or wrong"),
    )
    for one in told["batches"]:
        counts = one["counts"]
        ended = one["endedAt"] or one["expiresAt"]
        add_row(
            table,
            *(one["id"], one["user"], one["status"], one["endpoint"], one["model"] or "-"),
            *(counts["total"], counts["completed"], counts["failed"]),
            *(one.get("linesWaiting", 0), one.get("linesRunning", 0)),
            *(time_of(one["createdAt"]), time_of(ended), _why(one)),
        )
    print_page(table, "there is no batch that matches", told["next"])


def _why(batch: dict[str, Any]) -> str:
    """What a batch waits for, or what is wrong with it. (A gateway of before tells neither all of it.)"""
    if batch["error"]:
        line = batch.get("errorLine")
        return f"line {line}: {batch['error']}" if line else str(batch["error"])
    waits = [
        f"{one['code']} ({', '.join(one['models'])})" if one["models"] else one["code"]
        for one in batch.get("waitsFor", ())
    ]
    return " ".join(waits)


@app.command()
def cancel(
    batch: Annotated[str, typer.Argument(help="Its id.")],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """End a batch early: what has been answered stands in its files. Wants an admin's key."""
    again = "see how it stands with fairlane batches"
    told = ask(gateway, key, f"/api/admin/batches/{batch}/cancel", as_json, method="POST", again=again)
    if told is not None:
        typer.echo(f"{told['id']}: {told['status']}")
