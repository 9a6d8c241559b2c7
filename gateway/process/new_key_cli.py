"""`fairlane key new`: a key for the configuration; no gateway is asked."""

import json
import os
from typing import Annotated, Any, Literal, get_args

import typer
from pydantic import ValidationError

from fairlane.gateway.process.asking import stop
from fairlane.gateway.settings import CallerKey, Scope, WorkerKey


def new(
    key_id: Annotated[
        str | None, typer.Option("--id", help="Name of the key. [default: a random one]")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="Tier of its tasks. [default: free]")] = None,
    delegating: Annotated[bool, typer.Option("--delegating", help="It may name users and tiers.")] = False,
    signing: Annotated[
        bool, typer.Option("--signing", help="It may sign tokens; with --delegating.")
    ] = False,
    admin: Annotated[
        bool, typer.Option("--admin", help="It may see and change everything: for operators.")
    ] = False,
    scope: Annotated[
        list[str] | None, typer.Option(help="What it is for: call, viewer, metrics, admin. Repeatable.")
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", help="Make a token for workers instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print both as JSON.")] = False,
) -> None:
    """Make a key for the configuration: prints the secret, which is stored nowhere, and the line for fairlane.yaml."""
    from fairlane.gateway.accounts.secrets import new_secret  # noqa: PLC0415 (pulls in what callers need)
    from fairlane.gateway.accounts.tokens import signing_key  # noqa: PLC0415 (likewise)

    if worker and (tier or delegating or signing or admin or scope):
        stop("a worker token has no --tier, --delegating, --signing, --admin or --scope")
    if signing and not delegating:
        stop("--signing needs --delegating: tokens name users")
    if unknown := set(scope or ()) - set(get_args(Scope)):
        stop(f"--scope must be one of {', '.join(get_args(Scope))}, not {min(unknown)}")
    kind: Literal["key", "worker"] = "worker" if worker else "key"
    key_id = key_id or f"{kind}-{os.urandom(3).hex()}"
    secret, sha256 = new_secret(kind, key_id)
    try:
        if worker:
            WorkerKey(id=key_id, sha256=sha256)
        else:
            CallerKey(id=key_id, sha256=sha256, tier=tier or "free")
    except ValidationError:
        stop("--id and --tier must be 1 to 64 letters, digits, dots, dashes or underscores")
    entry: dict[str, Any] = {
        "id": key_id,
        "tier": tier,
        "delegating": delegating,
        "admin": admin,
        "scopes": scope,
        "signing": signing,
    }
    entry = {name: value for name, value in entry.items() if value} | {"sha256": sha256}
    if signing:
        entry["signing_key"] = signing_key(secret)
    if as_json:
        typer.echo(json.dumps({"secret": secret, f"{kind}s": [entry]}, indent=2))
        return
    line = ", ".join(f"{name}: {json.dumps(value)}" for name, value in entry.items())
    typer.echo(f"{'Worker token' if worker else 'Key'}, shown this once:\n\n  {secret}\n")
    typer.echo(f"In fairlane.yaml:\n\n{'workers' if worker else 'keys'}:\n  - {{{line}}}")
