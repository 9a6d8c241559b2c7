"""`fairlane serve` and `demo`."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
import typer

from fairlane.gateway.cli.client import Config
from fairlane.gateway.process.logs import configure_logging
from fairlane.gateway.settings import Settings, load_settings


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

    Every setting can also be in the file or in the environment; `fairlane config check` shows the settings of a start and
    `fairlane config check --markdown` explains them all. SIGTERM and Ctrl-C let running tasks finish, SIGHUP reads
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

    environ = dict(os.environ)  # the supervisor drops a part of it

    def load() -> Settings:
        settings, warnings = load_settings(config, flags, environ)
        configure_logging(settings.log_format, settings.log_level)
        for warning in warnings:
            structlog.get_logger("fairlane.settings").warning(warning)
        return settings

    raise typer.Exit(run(load(), load))


def demo(port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port on loopback.")] = 8080) -> None:
    """Run a gateway with two simulated models, to try it out; leaves nothing behind."""
    from fairlane.gateway.process.demo import run_demo  # noqa: PLC0415 (the server, for this command only)

    raise typer.Exit(run_demo(port))
