"""`fairlane serve` and `demo`."""

import os
from dataclasses import make_dataclass
from typing import Annotated, Any, Optional

import structlog
import typer

from fairlane.gateway.cli.client import Config
from fairlane.gateway.serve.logs import configure_logging
from fairlane.gateway.settings import Settings, load_settings
from fairlane.workers.options import expanded

_ONE_VALUE: dict[str, Any] = {"redis_url": str, "pools": int}
"""The types of options whose settings can be lists in the file."""


def _flag(setting: str) -> tuple[str, Any, None]:
    """Return the option of a setting: it sets the same, and has its text."""
    field = Settings.model_fields[setting]
    help_text = " ".join((field.description or "").split())
    kind: Any = Optional[_ONE_VALUE.get(setting, field.annotation)]  # noqa: UP045 (its parts are known at run time)
    return setting, Annotated[kind, typer.Option(help=help_text)], None


_SETTINGS = ("host", "port", "redis_url", "data_dir", "processes", "pools", "log_format", "log_level")
Flags = make_dataclass("Flags", map(_flag, _SETTINGS))


@expanded
def serve(flags: Flags, config: Config = None) -> None:  # type: ignore[valid-type]  # (the options of settings)
    """Run the gateway.

    Every setting can also be in the file or in the environment; `fairlane config check` shows the settings of a start and
    `fairlane config check --markdown` explains them all. SIGTERM and Ctrl-C let running tasks finish, SIGHUP reads
    keys and limits again.
    """
    from fairlane.gateway.serve.start import run  # noqa: PLC0415 (the server, for this command only)

    environ = dict(os.environ)  # the supervisor drops a part of it

    def load() -> Settings:
        settings, warnings = load_settings(config, vars(flags), environ)
        configure_logging(settings.log_format, settings.log_level)
        for warning in warnings:
            structlog.get_logger("fairlane.settings").warning(warning)
        return settings

    raise typer.Exit(run(load(), load))


def demo(port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port on loopback.")] = 8080) -> None:
    """Run a gateway with two simulated models, to try it out; leaves nothing behind."""
    from fairlane.gateway.serve.demo import run_demo  # noqa: PLC0415 (the server, for this command only)

    raise typer.Exit(run_demo(port))
