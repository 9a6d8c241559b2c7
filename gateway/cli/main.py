"""The command `fairlane`.

Mistakes of the user end in one message on stderr and exit code 2. The module of a command is imported when the command is used:
`fairlane worker` stays small.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairlane import __version__
from fairlane.gateway.cli.client import USAGE_EXIT

INTERRUPTED_EXIT = 130

_HERE = "fairlane.gateway.cli"
FIRST = {
    "serve": (f"{_HERE}.serve", "serve"),
    "demo": (f"{_HERE}.serve", "demo"),
    "status": (f"{_HERE}.status", "status"),
    "worker": ("fairlane.workers.cli", "app"),
}
"""The commands that are not in the table of `commands`, with their module and their name in it."""
SHOWN_FIRST = (*FIRST, "key", "config")


class _Loaded(Mapping[str, Any]):
    """Commands by name, each loaded when it is used."""

    def __getitem__(self, name: str) -> Any:
        if name in FIRST:
            module, attribute = FIRST[name]
            found = getattr(importlib.import_module(module), attribute)
        else:
            found = importlib.import_module(f"{_HERE}.commands").group(name)
        command = _click(name, found)
        if name == "worker":  # whose commands import no gateway
            command.add_command(_click("drain", importlib.import_module(f"{_HERE}.drain").drain))
        return command

    def __iter__(self) -> Iterator[str]:
        return iter([*FIRST, *importlib.import_module(f"{_HERE}.commands").GROUPS])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _click(name: str, found: Any) -> Any:
    """Return the command of a function, or the commands of a Typer."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    return typer.main.get_group(app).commands[name]


class _Commands(TyperGroup):
    """The commands of `fairlane`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Loaded()  # type: ignore[assignment]  # it is only read

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the commands in two sections."""
        others = sorted({*self.commands} - {*SHOWN_FIRST})
        for title, names in (("Commands", SHOWN_FIRST), ("Operator commands", others)):
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(60)) for name in names])


app = typer.Typer(
    cls=_Commands,
    name="fairlane",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Fair queueing for shared LLMs: a gateway that queues requests instead of rejecting them.

Try it with simulated models:  fairlane demo

Serve, and connect a worker in a second terminal:

  fairlane serve

  fairlane worker start --provider echo
""",
)


def main() -> None:
    """The console command. Ends the process."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except Exception as error:
        # The edge of the program: nothing is running any more.
        from fairlane.gateway.settings import SettingsError  # noqa: PLC0415 (slow to import)

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
