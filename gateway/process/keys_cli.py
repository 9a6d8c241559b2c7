"""`fairlane key create|list|show|change|rotate|revoke`: the keys of a running gateway, which its database keeps."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, get_origin
from urllib.parse import quote

import msgspec
import typer

from fairlane.gateway.durations import duration
from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, print_away, query_of, stop, warn
from fairlane.gateway.process.new_key_cli import new
from fairlane.gateway.process.tables import add_row, make_table, print_page, print_table, time_of
from fairlane.gateway.process.times import DURATION, UNITS_MS, read_time
from fairlane.gateway.settings import CallerKey, KeyLimits, KeyQuota, part_of

KEYS = "/api/admin/keys"

_LISTS = {name for name, field in CallerKey.model_fields.items() if get_origin(field.annotation) is list}
_PARTS = {name for name, field in CallerKey.model_fields.items() if part_of(field)}
_TEXTS = {"tier", "user_from", "note", *(f"quota.{name}" for name in KeyQuota.model_fields)}
"""What is no JSON; an amount of credits is sent as it is written."""

KeyId = Annotated[str, typer.Argument(help="The key's id.")]
VALUES_HELP = (
    "name=value: tier, weight, models, scopes, admin, delegating, user_from, signing, note, expires "
    "(30d, 12h, or a date such as 2027-01-31, UTC), limits.NAME and user_limits.NAME ("
    + ", ".join(KeyLimits.model_fields)
    + "), quota.NAME ("
    + ", ".join(KeyQuota.model_fields)
    + "). Lists as a,b."
)


def create(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[ID] [NAME=VALUE]...", help=VALUES_HELP)
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", help="Make a token for workers.")] = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Create a key, which holds on all gateways within a second. Prints its secret, this once. Written to the audit record.

    fairlane key create app tier=paid note="the shop" expires=90d

    fairlane key create site delegating=true limits.max_running=20 user_limits.requests_per_minute=10

    fairlane key create shop tier=paid quota.budget=20 quota.per=month quota.otherwise=free

    fairlane key create ops admin=true

    fairlane key create gpu-1 --worker models=llama,qwen
    """
    words = list(words or ())
    named = {"id": words.pop(0)} if words and "=" not in words[0] else {}
    body = {**named, **({"kind": "worker"} if worker else {}), **_read(words)}
    _print_secret(ask(gateway, key, KEYS, as_json, body, method="POST"))


def show_all(
    text: Annotated[str, typer.Argument(help="A part of the id or the note.")] = "",
    kind: Annotated[str, typer.Option(help="caller or worker. [default: both]")] = "",
    after: Annotated[str, typer.Option(help="Go on after this id, as the last page says.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Show no more than so many.")] = 100,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show the keys: those of the configuration, and those created here. A gateway with keys wants a viewer's or an admin's."""
    wanted = {"text": text, "kind": kind, "after": after, "limit": limit}
    told = ask(gateway, key, f"{KEYS}{query_of(wanted)}", as_json)
    if told is None:
        return
    table = make_table("id", "kind", "state", "tier", "scopes", "expires", "last used", "source", "note")
    for row in told["keys"]:
        settings = row["settings"]
        scopes = ["admin"] if settings.get("admin") else settings.get("scopes", [])
        may = settings.get("tier", "-"), " ".join(scopes) or "-"
        times = time_of(row["expires"]), time_of(row["lastUsed"])
        add_row(table, row["id"], row["kind"], row["state"], *may, *times, row["source"], row["note"])
    print_away(told)
    print_page(table, "no key matches" if text or kind or after else "there are no keys", told["next"])


def show(
    key_id: KeyId,
    user: Annotated[
        str, typer.Option(help="Also what is left of the limits of this user of a delegating key.")
    ] = "",
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show one key with all its settings, and what is left of its limits. A gateway with keys wants a viewer's or an admin's."""
    told = ask(gateway, key, f"{_path(key_id)}{query_of({'user': user})}", as_json)
    if told is not None:
        print_away(told)
        _print_key(told)


def change(
    key_id: KeyId,
    values: Annotated[
        list[str], typer.Argument(help=f"{VALUES_HELP} null takes a value back to its default.")
    ],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Change a key on all gateways, within a second. Written to the audit record.

    fairlane key change app tier=free expires=null

    fairlane key change site limits.tokens_per_day=1000000 limits.max_running=null

    fairlane key change site user_limits=null quota=null
    """
    told = ask(gateway, key, _path(key_id), as_json, _read(values))
    if told is not None:
        _print_key(told)
        warn(told["notes"])


def rotate(
    key_id: KeyId,
    keep: Annotated[
        str, typer.Option(help="How long the secrets that it has now stay valid, such as 24h, 7d or 0.")
    ] = "24h",
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Give a key another secret, which is shown this once; old and new are valid side by side for a time. Written to the audit
    record."""
    duration = DURATION.fullmatch(keep)
    if duration is None and keep != "0":
        stop("--keep must be a time such as 30m, 24h or 7d, or 0")
    keep_ms = int(duration[1]) * UNITS_MS[duration[2]] if duration else 0
    _print_secret(ask(gateway, key, f"{_path(key_id)}/rotate", as_json, {"keep_ms": keep_ms}, method="POST"))


def revoke(
    key_id: KeyId,
    now: Annotated[
        bool, typer.Option("--now", help="Also end its open calls, and its tasks that wait or run.")
    ] = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """End a key on all gateways, for good. What is under way goes on, unless --now is said; workers' connections end anyhow.
    Written to the audit record."""
    told = ask(gateway, key, f"{_path(key_id)}/revoke", as_json, {"now": now}, method="POST")
    if told is not None:
        typer.echo(f"{told['id']} is revoked" + (f"; {told['cancelled']} tasks cancelled" if now else ""))
        warn(told["notes"])


app = typer.Typer(
    no_args_is_help=True,
    help="Make keys for callers and tokens for workers, in a running gateway or for its configuration.",
)
app.command("new")(new)
app.command("create")(create)
app.command("list")(show_all)
app.command("show")(show)
app.command("change")(change)
app.command("rotate")(rotate)
app.command("revoke")(revoke)


def _path(key_id: str) -> str:
    return f"{KEYS}/{quote(key_id, safe='')}"


def _read(values: list[str]) -> dict[str, Any]:
    """`tier=paid weight=2`, as the call takes it."""
    body: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            stop(f"{text!r} is no value; write name=value, or name=null for the default")
        where, dot, member = name.partition(".")
        into = body
        if dot and where in _PARTS:  # limits.max_running=3
            into = body.setdefault(where, {})
            if not isinstance(into, dict):
                stop(f"{where} is given twice")
        else:
            member = name
        if member in into:
            stop(f"{name} is given twice")
        into[member] = None if value == "null" else _value(name, value)
    return body


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    if name == "expires":
        return read_time("expires", text, otherwise=", or null")
    if name in _LISTS and not text.startswith("["):
        return [part.strip() for part in text.split(",")]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _print_key(row: Mapping[str, Any]) -> None:
    table = make_table("what", "value")
    for name in ("id", "kind", "state", "source", "note"):
        add_row(table, name, row[name] or "-")
    for name, value in row["settings"].items():
        if name in _PARTS and isinstance(value, dict):
            parts = (f"{of}={_plain(count)}" for of, count in value.items() if count is not None)
            add_row(table, name, " ".join(parts) or "-")
        else:
            add_row(table, name, "-" if value in (None, "") else _plain(value))
    for name in ("created", "expires", "revoked"):
        add_row(table, name, time_of(row[name]))
    add_row(table, "last used", time_of(row["lastUsed"]))
    for title, left in (("left", row.get("limits")), ("left of the user's", row.get("userLimits"))):
        for name, one in (left or {}).items():
            add_row(table, title, f"{_as_set(name)} {one['remaining']} of {one['limit']}{_back(one)}")
    for secret in row["secrets"]:
        until = "" if secret["validUntil"] is None else f", valid until {time_of(secret['validUntil'])}"
        add_row(table, "secret", f"of {time_of(secret['created'])}{until}")
    print_table(table)


def _plain(value: Any) -> str:
    """A value as one would write it: 2, not 2.0."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, float) and value.is_integer()
    return msgspec.json.encode(int(value) if whole else value).decode()


def _as_set(name: str) -> str:
    """`requestsPerMinute`, as it is set: `requests_per_minute`."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _back(left: Mapping[str, int]) -> str:
    """When all of a limit is back."""
    return f", all in {duration(left['resetMs'])}" if left.get("resetMs") else ""


def _print_secret(told: Mapping[str, Any] | None) -> None:
    if told is not None:
        what = "Worker token" if told["kind"] == "worker" else "Key"
        typer.echo(f"{what} {told['id']}, shown this once:\n\n  {told['secret']}\n")
        warn(told["notes"])
