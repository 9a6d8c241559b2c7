"""`fairlane quota grant|show|ledger`: what keys and users of a running gateway can pay with."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, print_away, query_of, warn
from fairlane.gateway.process.tables import add_row, make_table, print_page, print_table, time_of

QUOTA = "/api/admin/quota"
WHOM = "Who pays: a key, by its id, or a user of a delegating key, as the task list names it: site/ann."
Whom = Annotated[str, typer.Argument(help=WHOM)]
AnyWhom = Annotated[str, typer.Argument(help=WHOM + " [default: all]")]
AsUser = Annotated[
    bool,
    typer.Option(
        "--user",
        help="WHOM is a user, not a key: requests of a delegating key that name no user are of the user with the key's id.",
    ),
]


def grant(
    whom: Whom,
    credits: Annotated[str, typer.Argument(help="How many; less than 0 takes back. At most 6 decimals.")],
    note: Annotated[str, typer.Option(help="What for.")] = "",
    grant_id: Annotated[
        str,
        typer.Option(
            "--id", help="Yours, such as the number of an invoice: the same again grants nothing more."
        ),
    ] = "",
    user: AsUser = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Grant credits, which stay until they are used, to a key or a user; on all gateways at once. Written to the audit record.

    fairlane quota grant app 50 --id invoice-17 --note "paid in November"

    fairlane quota grant site/ann 2.5

    fairlane quota grant app -50 --id invoice-17-back
    """
    own = grant_id or f"grant-{secrets.token_hex(8)}"
    body = {**_of(whom, user), "credits": credits, "id": own, **({"note": note} if note else {})}
    again = f"if it is not known whether it was done, repeat it with --id {own}: it grants once"
    told = ask(gateway, key, f"{QUOTA}/grants", as_json, body, method="POST", again=again, exact=True)
    if told is None:
        return
    made = "granted" if told["credits"] > 0 else "taken back"
    done = (
        f"{abs(told['credits'])} credits {made}"
        if told["new"]
        else "granted before: nothing more was granted"
    )
    typer.echo(f"{told['user'] or told['key']}: {done} ({told['id']}), the balance is {told['balance']}")
    warn(told["notes"])


def show(
    whom: AnyWhom = "",
    text: Annotated[str, typer.Option(help="Only those with this part of a name.")] = "",
    after: Annotated[str, typer.Option(help="Go on after this one, as the last page says.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show no more than so many.")] = 100,
    user: AsUser = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what keys and users can pay with, in credits. A gateway with keys wants a viewer's or an admin's."""
    wanted = {**_of(whom, user), "text": text, "after": after, "limit": str(limit)}
    told = ask(gateway, key, f"{QUOTA}{query_of(wanted)}", as_json, exact=True)
    if told is None:
        return
    table = make_table(
        *("who", "available", "balance", "granted", "spent", "held"),
        *("budget", "used", "per", "anew", "otherwise"),
    )
    for row in told["rows"]:
        budget = row["budget"] or {}
        spans = [budget.get(name, "-") for name in ("limit", "used", "per")]
        anew = time_of(budget["ends"]) if budget else "-"
        name = _who(row) + ("" if row["active"] else " (pays nothing)")
        amounts = (row[column] for column in ("available", "balance", "granted", "spent", "held"))
        add_row(table, name, *amounts, *spans, anew, row["otherwise"] or "-")
    print_away(told)
    if told["rows"]:
        print_table(table)
    elif not told["databaseAway"]:
        typer.echo("nobody was granted anything or has paid" + (" who is called so" if text else ""))
    if told["next"]:
        typer.echo(f"there are more: --after {told['next']}")


def ledger(
    whom: AnyWhom = "",
    kind: Annotated[str, typer.Option(help="grant or task. [default: both]")] = "",
    since: Annotated[str, typer.Option("--from", help="The first day (UTC), such as 2026-11-01.")] = "",
    until: Annotated[str, typer.Option("--to", help="Up to, and without, this day (UTC).")] = "",
    after: Annotated[str, typer.Option(help="Go on after this row, as the last page says.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show no more rows than so many.")] = 100,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
    user: AsUser = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what was granted and what tasks have cost, the newest first. A gateway with keys wants a viewer's or an admin's."""
    wanted = {**_of(whom, user), "kind": kind, "from": since, "to": until}
    wanted |= {"after": after, "limit": str(limit), "format": "csv" if as_csv else ""}
    path = f"{QUOTA}/ledger{query_of(wanted)}"
    told = ask(gateway, key, path, as_json or as_csv, exact=True, ends_line=not as_csv)
    if told is None:
        return
    table = make_table("at", "who", "what", "fund", "amount", "held", "refunded", "note")
    for row in told["rows"]:
        fund = row["fund"] + (f" to {time_of(row['ends'])}" if row["ends"] else "")
        what = f"{row['kind']} {row['id']}"
        amounts = (row["amount"], row["held"], row["refunded"])
        note = " ".join(filter(None, (row["who"] and f"by {row['who']}", row["note"])))
        add_row(table, time_of(row["at"]), _who(row), what, fund, *amounts, note or "-")
    print_page(table, "there are no such rows", told["next"])


app = typer.Typer(
    no_args_is_help=True, help="See and grant what keys and users of a running gateway can pay with."
)
# a number less than 0 is no option
app.command("grant", context_settings={"ignore_unknown_options": True})(grant)
app.command("show")(show)
app.command("ledger")(ledger)


def _of(whom: str, user: bool) -> dict[str, str]:
    """Whom a call is about."""
    return {"user" if user or "/" in whom else "key": whom} if whom else {}


def _who(row: Mapping[str, Any]) -> str:
    """Who pays. A user whom no request named has the key's id as well: told apart from the key."""
    user: str = row["user"]
    if not user:
        return str(row["key"])
    return user if "/" in user else f"{user} (no user named)"
