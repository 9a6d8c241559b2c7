"""`fairlane serve`, `demo` and `check`."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
import typer
from msgspec import to_builtins

from fairlane.gateway.accounts.openmode import who_gets_in
from fairlane.gateway.process.asking import Config
from fairlane.gateway.process.logs import configure_logging
from fairlane.gateway.settings import Settings, load_settings, settings_table, without_secrets


def _about(setting: str) -> str:
    """What a flag does: the first sentences of its setting's own text."""
    return " ".join((Settings.model_fields[setting].description or "").split())


LogFormat = Literal["auto", "json", "human"]
LogLevel = Literal["debug", "info", "warning", "error"]


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


def demo(port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port on loopback.")] = 8080) -> None:
    """Run a gateway with two simulated models, to try it out; leaves nothing behind."""
    from fairlane.gateway.process.demo import run_demo  # noqa: PLC0415 (the server, for this command only)

    raise typer.Exit(run_demo(port))


def check(
    config: Config = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference of all settings instead, as Markdown.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print those that have their defaults, too.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print all settings as JSON, as the file has them, and `sources`: who set which."
        ),
    ] = False,
) -> None:
    """Check the settings, say who gets in, and print what a gateway would start with: each setting that is not as by default, and
    whether the file, the environment or a flag says so; secrets hidden. The database is asked for keys, and left as it is.

    One that runs took them over at its start, and some again at a SIGHUP, and others may have been changed since:
    `fairlane settings` asks it.
    """
    if markdown:
        typer.echo(settings_table(), nl=False)
        return
    settings, warnings = load_settings(config, {}, os.environ)
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    held, unknown = database_cli.held(settings)
    for warning in [*warnings, *unknown, *who_gets_in(settings, held)]:
        typer.echo(f"fairlane: {warning}", err=True)
    from fairlane.gateway.operator.effective import of_file  # noqa: PLC0415 (for this command only)
    from fairlane.gateway.process.settings_cli import print_rows  # noqa: PLC0415

    rows = [to_builtins(row) for row in of_file(settings)]
    if as_json:
        sources = {
            row["name"]: {"source": row["source"], "where": row["where"]}
            for row in rows
            if row["source"] != "default" and not row["follows"]
        }
        typer.echo(json.dumps(without_secrets(settings) | {"sources": sources}, indent=2))
        return
    print_rows([row for row in rows if everything or row["differs"]], len(rows))
