"""The command `fairlane`: serve, demo, check, key, quota, usage, db, status, cancel, queues, models, worker.

Mistakes of the user end in one sentence on stderr and exit code 2. The server is imported only by the
commands that run it, so that `fairlane worker` stays small.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import structlog
import typer
from pydantic import ValidationError

from fairlane import __version__
from fairlane.gateway.accounts.openmode import who_gets_in
from fairlane.gateway.process import (
    audit_cli,
    keys_cli,
    limits_cli,
    operator_cli,
    quota_cli,
    usage_cli,
    user_cli,
)
from fairlane.gateway.process.limits_cli import HERE, USAGE_EXIT, AdminKey, AsJson, Url, stop
from fairlane.gateway.process.logs import configure_logging
from fairlane.gateway.settings import (
    CallerKey,
    Scope,
    Settings,
    SettingsError,
    WorkerKey,
    describe,
    load_settings,
    settings_table,
    without_secrets,
)
from fairlane.workers import cli as workers_cli

INTERRUPTED_EXIT = 130

app = typer.Typer(
    name="fairlane",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""An LLM gateway that queues instead of refusing.

See it work with simulated models:  fairlane demo

Serve, and connect a worker in a second terminal:

  fairlane serve

  fairlane worker echo
""",
)
key_app = typer.Typer(
    no_args_is_help=True,
    help="Make keys for callers and tokens for workers, in a running gateway or for its configuration.",
)
app.add_typer(key_app, name="key")
quota_app = typer.Typer(
    no_args_is_help=True, help="See and grant what keys and users of a running gateway can pay with."
)
app.add_typer(quota_app, name="quota")
db_app = typer.Typer(no_args_is_help=True, help="See to the SQL database.")
app.add_typer(db_app, name="db")
app.add_typer(user_cli.app, name="user")
app.add_typer(limits_cli.queues, name="queues")
app.add_typer(limits_cli.models, name="models")
app.add_typer(workers_cli.app, name="worker")


def main() -> None:
    """The console command. Ends the process."""
    try:
        app()
    except SettingsError as error:
        for problem in error.problems:
            typer.echo(f"fairlane: {problem}", err=True)
        sys.exit(USAGE_EXIT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except Exception as error:
        # The edge of the program: nothing is running any more, and the user is told what it was.
        if os.environ.get("FAIRLANE_TRACEBACK"):
            raise
        hint = "set FAIRLANE_TRACEBACK=1 to see where"
        typer.echo(f"fairlane: unexpected {error.__class__.__name__}: {error} ({hint})", err=True)
        sys.exit(USAGE_EXIT)


def _about(setting: str) -> str:
    """What a flag does: the first sentences of its setting's own text."""
    return " ".join((Settings.model_fields[setting].description or "").split())


Config = Annotated[
    Path | None,
    typer.Option(
        envvar="FAIRLANE_CONFIG", help="YAML file with settings. [default: ./fairlane.yaml, if any]"
    ),
]
LogFormat = Literal["auto", "json", "human"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairlane {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help=_about("host"))] = None,
    port: Annotated[int | None, typer.Option(help=_about("port"))] = None,
    config: Config = None,
    redis_url: Annotated[str | None, typer.Option(help=_about("redis_url"))] = None,
    data_dir: Annotated[Path | None, typer.Option(help=_about("data_dir"))] = None,
    processes: Annotated[int | None, typer.Option(help=_about("processes"))] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help=_about("log_format"))] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help=_about("log_level"))] = None,
) -> None:
    """Run the gateway.

    Every setting can also stand in the file or in the environment; `fairlane check` shows those of a start now and
    `fairlane check --markdown` explains them all. SIGTERM and Ctrl-C let running tasks finish, SIGHUP reads
    keys and limits again.
    """
    from fairlane.gateway.process.start import run  # noqa: PLC0415 (the server, for this command only)

    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "redis_url": redis_url,
        "data_dir": data_dir,
        "processes": processes,
        "log_format": log_format,
        "log_level": log_level,
    }

    def load() -> Settings:
        settings, warnings = load_settings(config, flags, os.environ)
        configure_logging(settings.log_format, settings.log_level)
        for warning in warnings:
            structlog.get_logger("fairlane.settings").warning(warning)
        return settings

    raise typer.Exit(run(load(), load))


@app.command()
def demo(port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port on loopback.")] = 8080) -> None:
    """Run a gateway with two simulated models, to try it out; leaves nothing behind."""
    from fairlane.gateway.process.demo import run_demo  # noqa: PLC0415 (the server, for this command only)

    raise typer.Exit(run_demo(port))


@app.command()
def check(
    config: Config = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference of all settings instead, as Markdown.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the settings as JSON.")] = False,
) -> None:
    """Check the settings, say who gets in, and print those that a gateway would start with, secrets hidden. The database is asked
    for keys, and left as it is.

    One that runs took them over at its start, and some again at a SIGHUP: its log names what waits for a restart.
    """
    if markdown:
        typer.echo(settings_table(), nl=False)
        return
    settings, warnings = load_settings(config, {}, os.environ)
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    held, unknown = database_cli.held(settings)
    for warning in [*warnings, *unknown, *who_gets_in(settings, held)]:
        typer.echo(f"fairlane: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(without_secrets(settings), indent=2))
        return
    rows = describe(settings)
    width = max(len(name) for name, _ in rows)
    for name, value in [("setting", "value"), *rows]:
        typer.echo(f"{name:{width}}  {value}")


@key_app.command("new")
def key_new(
    key_id: Annotated[
        str | None, typer.Option("--id", help="Name of the key. [default: a random one]")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="Tier of its tasks. [default: free]")] = None,
    delegating: Annotated[bool, typer.Option("--delegating", help="It may name users and tiers.")] = False,
    signing: Annotated[bool, typer.Option("--signing", help="It may sign requests and tokens.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="It may read the admin pages.")] = False,
    scope: Annotated[
        list[str] | None, typer.Option(help="What it is for: call, viewer, metrics, admin. Repeatable.")
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", help="Make a token for workers instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print both as JSON.")] = False,
) -> None:
    """Make a key for the configuration: prints the secret, which is stored nowhere, and the line for fairlane.yaml."""
    from fairlane.gateway.accounts.secrets import new_secret  # noqa: PLC0415 (pulls in what callers need)
    from fairlane.gateway.accounts.signing import signing_key  # noqa: PLC0415 (likewise)

    if worker and (tier or delegating or signing or admin or scope):
        stop("a worker token has no --tier, --delegating, --signing, --admin or --scope")
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


@app.command()
def status(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show queues, models and workers. A gateway with keys wants a viewer's or an admin's."""
    from fairlane.gateway.process.status import StatusError, fetch_state, print_state  # noqa: PLC0415 (an HTTP client)

    try:
        raw, state = fetch_state(gateway, key)
    except StatusError as error:
        stop(str(error))
    if as_json:
        typer.echo(raw)
    else:
        print_state(state)


@db_app.command("status")
def db_status(config: Config = None) -> None:
    """Tell which database it is and whether its schema is this program's. Changes nothing. Exit code 1: it is to be upgraded."""
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    database_cli.status(config)


@db_app.command("upgrade")
def db_upgrade(config: Config = None) -> None:
    """Bring the schema to this program's. A gateway does so itself when it starts; here it can be done before."""
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    database_cli.upgrade(config)


@db_app.command("adopt")
def db_adopt(config: Config = None) -> None:
    """Let the replicas of the configured Redis share this database from now on: where theirs is gone for good."""
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    database_cli.adopt(config)


for name, key_command in keys_cli.COMMANDS.items():
    key_app.command(name)(key_command)
for name, quota_command in quota_cli.COMMANDS.items():
    # a number less than 0 is no option
    quota_app.command(name, context_settings={"ignore_unknown_options": name == "grant"})(quota_command)
for command in (
    *(operator_cli.users, operator_cli.tasks, operator_cli.cancel, operator_cli.drain),
    *(usage_cli.usage, audit_cli.audit, audit_cli.refusals),
):
    app.command()(command)


if __name__ == "__main__":
    main()
