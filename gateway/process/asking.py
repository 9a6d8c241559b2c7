"""What the commands share that ask a running gateway: their options, the question, and how a command ends that cannot go on."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlencode

import msgspec
import typer

if TYPE_CHECKING:
    import httpx2

    from fairlane.gateway.process.status import State

USAGE_EXIT = 2
HERE = "http://127.0.0.1:8080"

Url = Annotated[
    str,
    typer.Option("--gateway", envvar="FAIRLANE_GATEWAY", help="Address of the gateway, http://host:port."),
]
AdminKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="FAIRLANE_ADMIN_KEY",
        help="A key with the scope viewer; for changes, an admin's. Better in the environment: others on this machine see "
        "command lines.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the gateway's answer as it is.")]
Config = Annotated[
    Path | None,
    typer.Option(
        envvar="FAIRLANE_CONFIG", help="YAML file with settings. [default: ./fairlane.yaml, if any]"
    ),
]


def stop(sentence: str) -> NoReturn:
    """End the command: a mistake of the user, or nobody answers."""
    typer.echo(f"fairlane: {sentence}", err=True)
    raise typer.Exit(USAGE_EXIT)


def query_of(wanted: Mapping[str, object]) -> str:
    """`?name=value&…` of what is wanted; what is empty is not said, and of nothing there is none."""
    said = urlencode({name: value for name, value in wanted.items() if value})
    return f"?{said}" if said else ""


def answer_of(
    gateway: str,
    key: str | None,
    path: str,
    change: dict[str, Any] | None = None,
    *,
    method: str = "",
    again: str = "",
) -> "httpx2.Response":
    """A good answer to GET, to PATCH with `change`, or to another `method`; a sentence ends the command otherwise.

    `again`: what to do where it may have been done.
    """
    from fairlane.gateway.process.status import StatusError, call  # noqa: PLC0415 (an HTTP client)

    try:
        return call(gateway, key, path, change, method=method)
    except StatusError as error:
        stop(f"{error}; {again}" if again and error.unknown else str(error))


def ask(
    gateway: str,
    key: str | None,
    path: str,
    as_it_is: bool,
    change: dict[str, Any] | None = None,
    *,
    method: str = "",
    again: str = "",
    exact: bool = False,
    ends_line: bool = True,
) -> Any:
    """What the gateway answers, as `answer_of` asks it; None when it has been printed as it is.

    `exact`: fractions are decimals, as they were written.
    """
    answer = answer_of(gateway, key, path, change, method=method, again=again)
    if as_it_is:
        typer.echo(answer.text, nl=ends_line)
        return None
    return msgspec.json.Decoder(float_hook=Decimal if exact else None).decode(answer.content)


def state_of(gateway: str, key: str | None) -> "tuple[str, State]":
    """What runs and waits there, as it came and decoded; a sentence ends the command otherwise."""
    from fairlane.gateway.process.status import StatusError, fetch_state  # noqa: PLC0415 (an HTTP client)

    try:
        return fetch_state(gateway, key)
    except StatusError as error:
        stop(str(error))


def print_away(told: Mapping[str, Any]) -> None:
    """Say where an answer is not the database's, as that is away."""
    if told["databaseAway"]:
        warn([f"the SQL database is away; this is what the gateway and Redis know ({told['databaseAway']})"])


def warn(sentences: Iterable[str]) -> None:
    """Say something beside what a command shows. What names of callers and workers are in it have no control characters."""
    for sentence in sentences:
        typer.echo("fairlane: " + "".join(char for char in sentence if char.isprintable()), err=True)
