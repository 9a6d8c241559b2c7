"""The command `fairlane`: what it can do, and where each command stands.

Mistakes of the user end in one sentence on stderr and exit code 2. The module of a command is imported when the command is used:
`fairlane status` waits for no server, and `fairlane worker` stays small.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairlane import __version__
from fairlane.gateway.process.asking import USAGE_EXIT

INTERRUPTED_EXIT = 130

_HERE = "fairlane.gateway.process"
COMMANDS = {
    "serve": (f"{_HERE}.serve_cli", "serve"),
    "demo": (f"{_HERE}.serve_cli", "demo"),
    "check": (f"{_HERE}.serve_cli", "check"),
    "status": (f"{_HERE}.operator_cli", "status"),
    "settings": (f"{_HERE}.settings_cli", "settings"),
    "users": (f"{_HERE}.operator_cli", "users"),
    "tasks": (f"{_HERE}.operator_cli", "tasks"),
    "cancel": (f"{_HERE}.operator_cli", "cancel"),
    "drain": (f"{_HERE}.operator_cli", "drain"),
    "usage": (f"{_HERE}.usage_cli", "usage"),
    "audit": (f"{_HERE}.audit_cli", "audit"),
    "refusals": (f"{_HERE}.audit_cli", "refusals"),
    "key": (f"{_HERE}.keys_cli", "app"),
    "quota": (f"{_HERE}.quota_cli", "app"),
    "db": (f"{_HERE}.db_cli", "app"),
    "user": (f"{_HERE}.user_cli", "app"),
    "template": (f"{_HERE}.template_cli", "app"),
    "queues": (f"{_HERE}.limits_cli", "queues"),
    "models": (f"{_HERE}.limits_cli", "models"),
    "breakers": (f"{_HERE}.breakers_cli", "app"),
    "override": (f"{_HERE}.override_cli", "app"),
    "endpoints": (f"{_HERE}.endpoints_cli", "app"),
    "batches": (f"{_HERE}.batches_cli", "app"),
    "webhooks": (f"{_HERE}.webhooks_cli", "app"),
    "worker": ("fairlane.workers.cli", "app"),
}
"""The module of each, and what it is there: a function, or an app with commands of its own."""


class _Loaded(Mapping[str, Any]):
    """Commands by name, each loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        module, attribute = COMMANDS[name]
        found = getattr(importlib.import_module(module), attribute)
        around = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name)
        else:
            around.command(name)(found)
        return typer.main.get_group(around).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    """Those of `fairlane`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loaded()  # type: ignore[assignment]  # of which it only reads


app = typer.Typer(
    cls=_Commands,
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


def main() -> None:
    """The console command. Ends the process."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except Exception as error:
        # The edge of the program: nothing is running any more, and the user is told what it was.
        from fairlane.gateway.settings import SettingsError  # noqa: PLC0415 (which has been imported where it was raised)

        if isinstance(error, SettingsError):
            for problem in error.problems:
                typer.echo(f"fairlane: {problem}", err=True)
            sys.exit(USAGE_EXIT)
        if os.environ.get("FAIRLANE_TRACEBACK"):
            raise
        hint = "set FAIRLANE_TRACEBACK=1 to see where"
        typer.echo(f"fairlane: unexpected {error.__class__.__name__}: {error} ({hint})", err=True)
        sys.exit(USAGE_EXIT)


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


if __name__ == "__main__":
    main()
