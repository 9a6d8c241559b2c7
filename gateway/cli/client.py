"""Requests of the commands to a running gateway, and the options that these commands share."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlencode, urlsplit

import msgspec
import typer

from fairlane.workers.hosts import client_options
from fairlane.workers.secrets import check_secret

if TYPE_CHECKING:
    import httpx2

USAGE_EXIT = 2
TIMEOUT_S = 10.0

Config = Annotated[
    Path | None,
    typer.Option(
        envvar="FAIRLANE_CONFIG", help="YAML file with settings. [default: ./fairlane.yaml, if any]"
    ),
]


def stop(message: str) -> NoReturn:
    """End the command with a message on stderr and exit code 2."""
    typer.echo(f"fairlane: {message}", err=True)
    raise typer.Exit(USAGE_EXIT)


def warn(message: str) -> None:
    """Print a warning on stderr, without the control characters that names of clients and workers may hold."""
    typer.echo("fairlane: " + "".join(char for char in message if char.isprintable()), err=True)


def base_url(gateway: str) -> str:
    """Return the address of a gateway, given as http(s)://host:port or as a worker's ws(s)://host:port/ws."""
    parts = urlsplit(gateway if "://" in gateway else f"http://{gateway}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https") or not parts.hostname:
        stop(f"{gateway!r} is not the address of a gateway; write http://host:port")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ws')}"


@dataclass(frozen=True)
class Gateway:
    """The running gateway that a command asks."""

    gateway: Annotated[
        str, typer.Option(envvar="FAIRLANE_GATEWAY", help="Address of the gateway, http://host:port.")
    ] = "http://127.0.0.1:8080"
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="FAIRLANE_API_KEY",
            help="API key with the scope viewer; changes need admin. Prefer the environment: other users see command lines.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the gateway's answer as JSON.")] = False

    def request(
        self,
        path: str,
        method: str = "GET",
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        repeat: str = "the same command again is safe",
    ) -> "httpx2.Response":
        """Return the gateway's successful answer; end the command otherwise.

        `repeat` is the advice for a change with an unknown outcome.
        """
        import httpx2  # noqa: PLC0415 (slow to import)

        url = base_url(self.gateway)
        try:
            check_secret(self.api_key or "", "the key in FAIRLANE_API_KEY or --api-key")
        except ValueError as problem:
            stop(str(problem))
        search = {name: value for name, value in (query or {}).items() if value not in ("", None)}
        unknown = f"; if the change was made is unknown: {repeat}" if method != "GET" else ""
        try:
            with httpx2.Client(timeout=TIMEOUT_S, **client_options(url)) as client:
                answer = client.request(
                    method,
                    url + path + (f"?{urlencode(search)}" if search else ""),
                    headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
                    json=body,
                )
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as problem:
            sent = not isinstance(problem, httpx2.ConnectError | httpx2.InvalidURL | UnicodeError)
            stop(
                f"no gateway answers at {self.gateway} ({problem or problem.__class__.__name__}): start one (`fairlane serve`), "
                f"or set --gateway or FAIRLANE_GATEWAY{unknown if sent else ''}"
            )
        if answer.is_success:
            return answer
        if answer.status_code == 401:
            stop(
                f"the gateway {'rejects this key' if self.api_key else 'requires a key'}: set FAIRLANE_API_KEY or --api-key to a "
                "key with the scope viewer, or admin for changes"
            )
        try:
            rejection = msgspec.json.decode(answer.content, type=_Rejection)
        except msgspec.MsgspecError:
            stop(
                f"the server at {self.gateway} is not a gateway of this version (status {answer.status_code})"
            )
        reason = f": {rejection.reason}" if rejection.reason else ""
        known = answer.status_code < 500 or rejection.unchanged
        stop(f"{rejection.error}{reason}{'' if known else unknown}")


def decoded(answer: "httpx2.Response") -> Any:
    """Return the JSON of an answer, with exact fractions."""
    return _DECODER.decode(answer.content)


_DECODER = msgspec.json.Decoder(float_hook=Decimal)


class _Rejection(msgspec.Struct):
    error: str
    reason: str = ""
    unchanged: bool = False
