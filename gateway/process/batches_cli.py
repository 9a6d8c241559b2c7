"""`fairlane batches`: whose batches there are, how far they are, and ending one."""

from typing import Annotated

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, query_of
from fairlane.gateway.process.limits_cli import ListUnlessTold
from fairlane.gateway.process.tables import add_row, make_table, print_table, time_of

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
    if not told["batches"]:
        typer.echo("there is no batch that matches")
        return
    table = make_table(
        *("batch", "user", "status", "call", "model", "lines", "completed", "failed"), *("created", "ends by")
    )
    for one in told["batches"]:
        counts = one["counts"]
        ended = one["endedAt"] or one["expiresAt"]
        add_row(
            table,
            *(one["id"], one["user"], one["status"], one["endpoint"], one["model"] or "-"),
            *(counts["total"], counts["completed"], counts["failed"]),
            *(time_of(one["createdAt"]), time_of(ended)),
        )
    print_table(table)
    if told["next"]:
        typer.echo(f"there are more: --after {told['next']}")


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
