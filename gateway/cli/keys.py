"""`fairlane key create|rotate` and `fairlane balance grant`: requests with a part that the table of commands does not know."""

import json
import os
import secrets
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer
from pydantic import ValidationError

from fairlane.gateway.cli.client import Gateway, decoded, stop, warn
from fairlane.gateway.cli.values import read_duration, read_values
from fairlane.gateway.settings import CallerKey, KeyLimits, KeyQuota, WorkerKey
from fairlane.workers.options import expanded

PATH = "/api/admin/keys"
VALUES_HELP = (
    f"Settings as NAME=VALUE: {', '.join(name for name in CallerKey.model_fields if name not in ('id', 'sha256'))}. "
    f"`limits.` and `user_limits.` have {', '.join(KeyLimits.model_fields)}; `quota.` has {', '.join(KeyQuota.model_fields)}. "
    "Lists as a,b; `expires` as 30d or 2027-01-31."
)


@expanded
def create(
    gateway: Gateway,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[ID] [NAME=VALUE]...", help=VALUES_HELP)
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", help="Create a worker token.")] = False,
    offline: Annotated[
        bool, typer.Option("--print", help="Ask no gateway: print an entry for the configuration file.")
    ] = False,
) -> None:
    """Create an API key or a worker token, valid on all gateways within a second. Prints its secret, once.

    fairlane key create app tier=paid note="the shop" expires=90d

    fairlane key create site delegating=true limits.max_running=20 user_limits.requests_per_minute=10

    fairlane key create shop tier=paid quota.budget=20 quota.per=month quota.otherwise=free

    fairlane key create gpu-1 --worker models=llama,qwen

    fairlane key create ops scopes=admin --print
    """
    values = list(words or ())
    named = {"id": values.pop(0)} if values and "=" not in values[0] else {}
    body = {**named, **read_values(values)}
    if offline:
        _print_entry("worker" if worker else "key", body, gateway.as_json)
        return
    if worker:
        body["kind"] = "worker"
    _create_secret(gateway, PATH, body, "see `fairlane key list`")


@expanded
def rotate(
    gateway: Gateway,
    key_id: Annotated[str, typer.Argument()],
    keep: Annotated[
        str, typer.Option(help="How long the present secrets stay valid, such as 24h, 7d or 0.")
    ] = "24h",
) -> None:
    """Give a key another secret, printed once. Old and new are valid for a time."""
    body = {"keepMs": read_duration("--keep", keep)}
    _create_secret(gateway, f"{PATH}/{quote(key_id, safe='')}/rotate", body, "see `fairlane key show`")


@expanded
def grant(
    gateway: Gateway,
    credits: Annotated[str, typer.Argument(help="Amount; a negative one takes credits away.")],
    key_id: Annotated[str, typer.Option("--key-id", help="The API key that pays.")] = "",
    user: Annotated[str, typer.Option(help="The user that pays, as the task list names it: site/ann.")] = "",
    note: Annotated[str, typer.Option(help="The reason.")] = "",
    grant_id: Annotated[
        str, typer.Option("--id", help="Your id, such as an invoice's: repeating it grants nothing more.")
    ] = "",
) -> None:
    """Grant credits to a key or a user.

    fairlane balance grant 50 --key-id app --id invoice-17 --note "paid in November"

    fairlane balance grant 2.5 --user site/ann
    """
    own = grant_id or f"grant-{secrets.token_hex(8)}"
    body = {"key": key_id, "user": user, "note": note, "credits": credits, "id": own}
    body = {name: value for name, value in body.items() if value}
    repeat = f"repeat it with --id {own}, which grants once"
    answer = gateway.request("/api/admin/balances/grants", "POST", body=body, repeat=repeat)
    if gateway.as_json:
        typer.echo(answer.text)
        return
    made = decoded(answer)
    done = f"{made['credits']} credits granted" if made["new"] else "granted before"
    typer.echo(f"{made['user'] or made['key']}: {done} ({made['id']}), the balance is {made['balance']}")
    for one in made["notes"]:
        warn(one)


def _create_secret(gateway: Gateway, path: str, body: object, repeat: str) -> None:
    answer = gateway.request(path, "POST", body=body, repeat=repeat)
    if gateway.as_json:
        typer.echo(answer.text)
        return
    key = decoded(answer)
    what = "Worker token" if key["kind"] == "worker" else "Key"
    typer.echo(f"{what} {key['id']}, shown once:\n\n  {key['secret']}\n")
    for note in key["notes"]:
        warn(note)


def _print_entry(kind: Literal["key", "worker"], values: dict[str, Any], as_json: bool) -> None:
    from fairlane.gateway.accounts.secrets import new_secret  # noqa: PLC0415 (pulls in what callers need)
    from fairlane.gateway.accounts.signed_tokens import signing_key  # noqa: PLC0415 (loads slowly)

    key_id = values.get("id") or f"{kind}-{os.urandom(3).hex()}"
    secret, sha256 = new_secret(kind, key_id)
    entry = {"id": key_id, **values, "sha256": sha256}
    if entry.get("signing"):
        entry["signing_key"] = signing_key(secret)
    try:
        (WorkerKey if kind == "worker" else CallerKey).model_validate(entry)
    except ValidationError as problem:
        first = problem.errors()[0]
        stop(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    if as_json:
        typer.echo(json.dumps({"secret": secret, f"{kind}s": [entry]}, indent=2))
        return
    line = ", ".join(f"{name}: {json.dumps(value)}" for name, value in entry.items())
    typer.echo(f"{'Worker token' if kind == 'worker' else 'Key'}, shown once:\n\n  {secret}\n")
    typer.echo(f"In fairlane.yaml:\n\n{kind}s:\n  - {{{line}}}")
