"""`fairlane user forget`: removes what is known of a user."""

from typing import Annotated

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, Url, answer_of, query_of

MOST_WAITS = 40
"""Calls in a row behind which batches or tasks have not ended yet. Each waits for them for three seconds or four."""

app = typer.Typer(no_args_is_help=True, help="See to the users of a running gateway.")
TOLD = {
    "usage": "usage records without their name",
    "days": "sums of days",
    "archived": "archived tasks removed",
    "audit": "entries of the audit record",
    "responses": "kept responses removed",
    "files": "files removed",
    "batches": "batches removed",
    "webhooks": "webhooks removed, and what any told of their ends",
    "results": "results removed from Redis",
}


@app.command("forget")
def forget(
    user: Annotated[
        str, typer.Argument(help="As the task list names it: key/user, of a key that names its users.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the sums of what was removed, and what is left, as JSON.")
    ] = False,
) -> None:
    """Forget a user, for good: what is archived of their tasks and their results are removed, and their name is taken out of
    usage and audit records. Batches that have not ended are cancelled, and nothing of them is kept; then their files go. Other
    tasks that wait or run go on: cancel them first. What a user with a quota of their own was granted and has paid stays in the
    ledger, with the name. Written to the audit record, without the name.

    Where batches do not end in minutes, as nobody leads them or new ones are made all the time, the command says so and exits
    with 1: run it again then.

    fairlane cancel --user site/ann

    fairlane user forget site/ann
    """
    unended = query_of({"user": user, "state": "unended", "limit": 1})
    if answer_of(gateway, key, f"/api/admin/batches{unended}").json()["batches"]:
        sentence = "has batches that have not ended: they will be cancelled, and nothing of them will be kept"
        typer.echo(f"{user} {sentence}", err=True)
    if not yes:
        typer.confirm(f"Forget {user} for good?", abort=True, err=True)
    done, told, waits = dict.fromkeys(TOLD, 0), {"more": True}, 0
    while told["more"] and waits < MOST_WAITS:
        told = answer_of(gateway, key, "/api/admin/users/forget", {"user": user}, method="POST").json()
        waits = waits + 1 if told["unended"] or told["stopping"] else 0
        done = {name: count + told[name] for name, count in done.items()}
    if as_json:
        import json  # noqa: PLC0415 (here alone)

        typer.echo(
            json.dumps({**done, **{name: told[name] for name in ("ledger", "unended", "stopping", "more")}})
        )
    else:
        for name, sentence in TOLD.items():
            typer.echo(f"{done[name]} {sentence}")
        if told["ledger"]:
            sentence = f"The ledger keeps the name in {told['ledger']} rows"
            typer.echo(f"{sentence}: what they were granted and have paid")
    if told["more"] and not told["unended"]:
        typer.echo(
            f"fairlane: {told['stopping']} tasks of {user} are cancelled, and their workers have not let go of them yet. Run "
            "this again",
            err=True,
        )
        raise typer.Exit(1)
    if told["more"]:
        typer.echo(
            f"fairlane: {told['unended']} batches of {user} are cancelled, and have not ended yet. Run this again; why they do "
            f"not: fairlane batches list --state unended --user {user}; if new ones are made meanwhile, take their access first",
            err=True,
        )
        raise typer.Exit(1)
