"""`fairlane audit` and `refusals`: what operators did, and what was refused."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, query_of
from fairlane.gateway.process.tables import add_row, make_table, print_page, time_of

Since = Annotated[str, typer.Option("--from", help="From this day (UTC) on, such as 2026-11-01.")]
Until = Annotated[str, typer.Option("--to", help="Before this day (UTC).")]
After = Annotated[str, typer.Option(help="Go on after this one, as the last page says.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Show no more than so many.")]


def audit(
    who: Annotated[str, typer.Option(help="Only what was done with this key, by its id.")] = "",
    action: Annotated[
        str,
        typer.Option(help="Only this: set, cancel, drain, create, change, rotate, revoke, grant, forget."),
    ] = "",
    target: Annotated[
        str, typer.Option(help="Only what was done to this: a kind, such as key, or 'key acme'.")
    ] = "",
    since: Since = "",
    until: Until = "",
    after: After = "",
    limit: Limit = 20,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what operators did, newest first: who, from where, and what was before. A gateway with keys wants a viewer's or an
    admin's.

    fairlane audit --target "queue paid_stream"

    fairlane audit --who ops --from 2026-11-01
    """
    wanted = {"who": who, "action": action, "target": target, "from": since, "to": until}
    wanted |= {"after": after, "limit": str(limit)}
    told = ask(gateway, key, f"/api/admin/audit{query_of(wanted)}", as_json)
    if told is None:
        return
    table = make_table("when (UTC)", "who", "from", "what", "to what", "before -> after")
    for entry in told["entries"]:
        done = entry["action"], entry["target"], _changes(entry["before"], entry["after"])
        add_row(table, _time(entry["at"]), entry["who"], entry["from"] or "-", *done)
    print_page(table, "nobody has done anything that matches", told["next"])


def refusals(
    caller: Annotated[str, typer.Option("--of-key", help="Only of this key, by its id.")] = "",
    code: Annotated[str, typer.Option(help="Only with this code, such as RATE_LIMITED.")] = "",
    since: Since = "",
    until: Until = "",
    after: After = "",
    limit: Limit = 20,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show how many calls were refused, by minute, key and code, the newest minute first. A gateway with keys wants a viewer's or
    an admin's.

    fairlane refusals --of-key acme --code RATE_LIMITED
    """
    wanted = {"key": caller, "code": code, "from": since, "to": until}
    wanted |= {"after": after, "limit": str(limit)}
    told = ask(gateway, key, f"/api/admin/refusals{query_of(wanted)}", as_json)
    if told is None:
        return
    table = make_table("minute (UTC)", "key", "code", "refused")
    for row in told["refusals"]:
        add_row(table, _time(row["minute"])[:-3], row["key"] or "-", row["code"], row["count"])
    print_page(table, "nothing was refused that matches", told["next"])


_TIMES = {"expires", "at", "until", "beganAt", "endedAt"}
"""Values of entries that are points in time."""


def _changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What was changed, without what was not set: a new key has thirty values, most of them null."""

    def text(name: str, value: Any) -> str:
        if value in (None, "", {}):
            return "-"
        if name in _TIMES and isinstance(value, int):
            return time_of(value)
        if isinstance(value, dict):
            parts = (f"{part}={text(part, one)}" for part, one in value.items() if one is not None)
            return " ".join(parts) or "-"
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    shown = []
    for name in {**before, **after}:
        was, now = (text(name, values[name]) if name in values else "" for values in (before, after))
        if name not in before and now == "-":
            continue
        shown.append(
            f"{name}: {was} -> {now}" if name in before and name in after else f"{name}: {was or now}"
        )
    return ", ".join(shown)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
