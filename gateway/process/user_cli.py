"""`fairlane user forget`: removes what is known of a user."""

from typing import Annotated

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, answer_of, query_of

app = typer.Typer(no_args_is_help=True, help="See to the users of a running gateway.")
TOLD = {
    "usage": "usage records without their name",
    "days": "sums of days",
    "archived": "archived tasks removed",
    "audit": "entries of the audit record",
    "responses": "kept responses removed",
    "files": "files removed",
    "batches": "batches removed that had ended",
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
    as_json: AsJson = False,
) -> None:
    """Forget a user, for good: what is archived of their tasks and their results are removed, and their name is taken out of
    usage and audit records. Tasks that wait or run go on: cancel them first. So do batches: lines that were submitted already
    still run, and their answers are written to new files; what was not read yet fails, as the files are gone. What a user with a
    quota of their own was granted and has paid stays in the ledger, with the name. Written to the audit record, without the name.

    fairlane cancel --user site/ann

    fairlane user forget site/ann
    """
    unended = query_of({"user": user, "state": "unended", "limit": 1})
    if answer_of(gateway, key, f"/api/admin/batches{unended}").json()["batches"]:
        typer.echo(
            f"{user} has batches that have not ended. Lines that were submitted already still run, and their answers are "
            "written to new files; what was not read yet fails. To end them first: "
            f"fairlane batches list --state unended --user {user}, and fairlane batches cancel ID",
            err=True,
        )
    if not yes:
        typer.confirm(f"Forget {user} for good?", abort=True)
    done = dict.fromkeys(TOLD, 0)
    more = True
    while more:
        told = answer_of(gateway, key, "/api/admin/users/forget", {"user": user}, method="POST").json()
        done = {name: count + told[name] for name, count in done.items()} | {"ledger": told["ledger"]}
        more = told["more"]
    if as_json:
        import json  # noqa: PLC0415 (here alone)

        typer.echo(json.dumps(done))
        return
    for name, sentence in TOLD.items():
        typer.echo(f"{done[name]} {sentence}")
    if done["ledger"]:
        typer.echo(
            f"The ledger keeps the name in {done['ledger']} rows: what they were granted and have paid"
        )
