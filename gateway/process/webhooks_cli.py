"""`fairlane webhooks`: callers' webhooks, what they have told, and switching one off."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, query_of
from fairlane.gateway.process.limits_cli import ListUnlessTold
from fairlane.gateway.process.tables import add_row, make_table, print_page, time_of

app = typer.Typer(
    cls=ListUnlessTold,
    help="Show callers' webhooks, by which they are told of ends, and what those have told; or switch one off.",
)

OfKey = Annotated[str, typer.Option("--of-key", help="Only of this key, by its id.")]
After = Annotated[str, typer.Option(help="Go on after this one, as the last page says.")]
Limit = Annotated[int, typer.Option(min=1, max=500, help="Show no more than so many.")]


@app.command("list")
def list_webhooks(
    caller: OfKey = "",
    after: After = "",
    limit: Limit = 50,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show everybody's webhooks, by id: what they owe, and how they stand. A gateway with keys wants a viewer's or an admin's."""
    wanted = {"key": caller, "after": after, "limit": str(limit)}
    told = ask(gateway, key, f"/api/admin/webhooks{query_of(wanted)}", as_json)
    if told is None:
        return
    table = make_table("webhook", "key", "user", "url", "events", "waiting", "missed", "state")
    for row in told["webhooks"]:
        events = " ".join(row["events"])
        owed = row["waiting"], row["missed"] or "-"
        add_row(table, row["id"], row["key"] or "-", row["user"], row["url"], events, *owed, _state(row))
    print_page(table, "nobody has a webhook", told["next"])


@app.command("log")
def log(
    caller: OfKey = "",
    webhook: Annotated[str, typer.Option(help="Only of this webhook, by its id.")] = "",
    state: Annotated[str, typer.Option(help="Only these: waiting, delivered, failed.")] = "",
    after: After = "",
    limit: Limit = 50,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what webhooks have told and are to tell, the newest event first. A gateway with keys wants a viewer's or an
    admin's."""
    wanted = {"key": caller, "webhook": webhook, "state": state, "after": after, "limit": str(limit)}
    told = ask(gateway, key, f"/api/admin/webhooks/deliveries{query_of(wanted)}", as_json)
    if told is None:
        return
    table = make_table("when", "webhook", "event", "of", "state", "attempts", "next", "why")
    for row in told["deliveries"]:
        about = row["webhookId"], row["event"], row["objectId"], row["state"], row["attempts"]
        add_row(table, time_of(row["createdAt"]), *about, time_of(row["nextAt"]), row["error"] or "-")
    print_page(table, "no webhook has told anything that matches", told["next"])


@app.command("off")
def off(
    webhook: Annotated[str, typer.Argument(help="The webhook, by its id.")],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Switch a webhook off, whoever's it is. Its owner may switch it on again: to keep it from that, end the key."""
    told = ask(gateway, key, f"/api/admin/webhooks/{quote(webhook, safe='')}/off", as_json, {}, method="POST")
    if told is not None:
        typer.echo(f"{told['id']} of {told['key'] or 'an open gateway'} is off: {told['url']}")


def _state(row: dict[str, Any]) -> str:
    if not row["enabled"]:
        return f"off: {row['offWhy']}"
    failing = row["failing"]
    return f"fails since {time_of(failing['since'])}: {failing['error']}" if failing else "well"
