"""The command `fairlane`: serve, demo, check, key, status, cancel, queues, models, worker.

Mistakes of the user end in one sentence on stderr and exit code 2. The server is imported only by the
commands that run it, so that `fairlane worker` stays small.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

import structlog
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlane import __version__
from fairlane.gateway.accounts.openmode import who_gets_in
from fairlane.gateway.process import limits_cli
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
key_app = typer.Typer(no_args_is_help=True, help="Make keys for callers and tokens for workers.")
app.add_typer(key_app, name="key")
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

    Every setting can also stand in the file or in the environment; `fairlane check` shows those in force and
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

    settings = load()
    for sentence in who_gets_in(settings):
        structlog.get_logger("fairlane.settings").warning(sentence)
    raise typer.Exit(run(settings, load))


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
) -> None:
    """Check the settings and print those in force, secrets hidden."""
    if markdown:
        typer.echo(settings_table(), nl=False)
        return
    settings, warnings = load_settings(config, {}, os.environ)
    for warning in [*warnings, *who_gets_in(settings)]:
        typer.echo(f"fairlane: {warning}", err=True)
    table = Table("setting", "value", box=None, pad_edge=False)
    for name, value in describe(settings):
        table.add_row(Text(name), Text(value))
    Console(soft_wrap=True).print(table)


@key_app.command("new")
def key_new(
    key_id: Annotated[
        str | None, typer.Option("--id", help="Name of the key. [default: a random one]")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="Tier of its tasks. [default: free]")] = None,
    delegating: Annotated[bool, typer.Option("--delegating", help="It may name users and tiers.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="It may read the admin pages.")] = False,
    scope: Annotated[
        list[str] | None, typer.Option(help="What it is for: call, viewer, metrics, admin. Repeatable.")
    ] = None,
    worker: Annotated[bool, typer.Option("--worker", help="Make a token for workers instead.")] = False,
) -> None:
    """Make a key: prints the secret, which is stored nowhere, and the line for fairlane.yaml."""
    from fairlane.gateway.accounts.secrets import new_secret  # noqa: PLC0415 (pulls in what callers need)

    if worker and (tier or delegating or admin or scope):
        stop("a worker token has no --tier, --delegating, --admin or --scope")
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
    fields = [f'id: "{key_id}"', *([f'tier: "{tier}"'] if tier else [])]
    fields += [f"{name}: true" for name, wanted in (("delegating", delegating), ("admin", admin)) if wanted]
    fields += [f"scopes: [{', '.join(scope)}]"] if scope else []
    line = ", ".join([*fields, f'sha256: "{sha256}"'])
    typer.echo(f"{'Worker token' if worker else 'Key'}, shown this once:\n\n  {secret}\n")
    typer.echo(f"In fairlane.yaml:\n\n{'workers' if worker else 'keys'}:\n  - {{{line}}}")


@app.command()
def status(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show queues, models and workers. A gateway with keys wants an admin's."""
    from fairlane.gateway.process.status import StatusError, fetch_state, print_state  # noqa: PLC0415 (an HTTP client)

    try:
        raw, state = fetch_state(gateway, key)
    except StatusError as error:
        stop(str(error))
    if as_json:
        typer.echo(raw)
    else:
        print_state(state, Console())


@app.command()
def cancel(
    user: Annotated[str, typer.Option(help="The user whose tasks they are, as the task list names it.")] = "",
    queue: Annotated[str, typer.Option(help="The queue, such as free_stream.")] = "",
    model: Annotated[str, typer.Option(help="The model that they ask for.")] = "",
    worker: Annotated[str, typer.Option(help="The id of the worker that runs them.")] = "",
    state: Annotated[str, typer.Option(help="queued or executing. [default: both]")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Cancel no more than so many.")] = 1000,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Cancel the tasks that wait or run and match all that is given. Written to the audit record.

    fairlane cancel --user flooder --state queued
    """
    from fairlane.gateway.process.status import StatusError, call  # noqa: PLC0415 (an HTTP client)

    if not (user or queue or model or worker):
        stop("say whose or which tasks: --user, --queue, --model or --worker")
    wanted = {"user": user, "queue": queue, "model": model, "worker": worker, "state": state, "limit": limit}
    query = urlencode({name: value for name, value in wanted.items() if value})
    try:
        reply = call(gateway, key, f"/api/admin/tasks/cancel?{query}", method="POST")
    except StatusError as error:
        stop(str(error))
    if as_json:
        typer.echo(reply.text)
    else:
        told = reply.json()
        typer.echo(f"{told['cancelled']} cancelled{'; there are more, call again' if told['more'] else ''}")


if __name__ == "__main__":
    main()
