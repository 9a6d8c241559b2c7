"""`fairlane queues` and `fairlane models`: their limits as a running gateway knows them, and changes of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import msgspec
import typer
from typer.core import TyperGroup

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, answer_of, state_of, stop, warn
from fairlane.gateway.process.tables import add_row, make_table, print_page, print_table, seconds

if TYPE_CHECKING:
    from fairlane.gateway.process.status import ModelRow, OutputLimitRow, OutputLimitsRow, QueueRow, State

MOST_NAMES = 20

Kind = Literal["queue", "model"]

CONDITIONS = {
    "paused": "paused",
    "paced": "paced",
    "model_paused": "model paused",
    "queue_paused": "paused",
    "no_worker": "no worker",
    "breaker_open": "its breaker is open",
    "reserved": "all slots are reserved for other queues",
}
"""Why nothing starts, in words."""

_WHY = {
    "short_queue": "the queue is short",
    "long_queue": "the queue is long",
    "answers": "answers take so long",
    "few_answers": "too few answers are known",
    "paused": "paused",
    "held": "held by its provider",
    "paced": "paced",
    "no_worker": "no worker",
    "breaker_open": "breaker open",
    "unknown": "how long the queue is, is not known",
}
"""Why a limit that follows the queue is what it is."""
_OF_QUEUE = ("short_queue", "long_queue", "answers")

SET_HELP = "One or more of: name=value. null takes a change back: what is configured holds again."


class ListUnlessTold(TyperGroup):
    """`fairlane queues --json` means `fairlane queues list --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


queues = typer.Typer(cls=ListUnlessTold, help="Show the queues and their limits, or change them.")
models = typer.Typer(cls=ListUnlessTold, help="Show the models and their limits, or change them.")


@queues.command("list")
def list_queues(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show the queues: who waits, what share of the service each had lately, and its limits. * marks what was changed while
    running. A gateway with keys wants a viewer's or an admin's."""
    _list("queue", gateway, key, as_json)


@models.command("list")
def list_models(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show the models: what runs and waits, and their limits. * marks what was changed while running. A gateway with keys
    wants a viewer's or an admin's."""
    _list("model", gateway, key, as_json)


@queues.command("set")
def set_queue(
    name: Annotated[str, typer.Argument(help="The queue, such as paid_stream.")],
    values: Annotated[list[str], typer.Argument(help=SET_HELP)],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Change a queue on all gateways at once: weight, max_length, max_wait_ms, max_running, reserved, lendable, borrow,
    admission, paused. Survives restarts, and is written to the audit record.

    fairlane queues set free_batch weight=0.5 max_running=10

    fairlane queues set free_batch paused=true
    """
    _set("queue", name, values, gateway, key, as_json)


@models.command("set")
def set_model(
    name: Annotated[str, typer.Argument(help="The model; one that nobody offers yet is fine.")],
    values: Annotated[list[str], typer.Argument(help=SET_HELP)],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Change a model on all gateways at once: concurrency, cost, requests_per_minute, tokens_per_minute, windows,
    max_running_per_user, max_waiting_per_user, paused. Survives restarts, and is written to the audit record.

    fairlane models set deepseek-chat concurrency=8 requests_per_minute=null
    """
    _set("model", name, values, gateway, key, as_json)


def _list(kind: Kind, gateway: str, key: str | None, as_json: bool) -> None:
    raw, state = state_of(gateway, key)
    if as_json:
        rows = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])[f"{kind}s"]
        typer.echo(msgspec.json.format(bytes(rows), indent=0).decode())
    elif kind == "queue":
        _print_queues(state)
    else:
        _print_models(state)


def _print_queues(state: "State") -> None:
    table = make_table(
        *("queue", "weight", "share", "waiting", "most waiting", "oldest", "wait limit"),
        *("running", "most running", "reserved", "lendable", "borrow", "admission", "state"),
    )
    for row in state.queues:
        marked = _Marked(row)
        add_row(
            table,
            row.queue + (" (paused)" if row.paused else ""),
            marked("weight", f"{row.weight:g}"),
            "-" if row.share is None else f"{row.share:.0%}",
            row.waiting,
            marked("max_length", row.max_length),
            "-" if row.oldest_wait_ms is None else seconds(row.oldest_wait_ms),
            marked("max_wait_ms", row.max_wait_ms and seconds(row.max_wait_ms)),
            row.running,
            marked("max_running", row.max_running),
            marked("reserved", row.reserved),
            marked("lendable", row.lendable),
            marked("borrow", row.borrow),
            marked("admission", row.admission),
            "paused" if row.paused else CONDITIONS.get(row.blocked or "", ""),
        )
    print_table(table)


def _print_models(state: "State") -> None:
    limited = any(row.output_limits for row in state.models)
    called = any(row.endpoint for row in state.models)
    table = make_table(
        *("model", "running", "limit", "waiting", "cost", "requests/min", "tokens/min", "windows"),
        *(
            "running/user",
            "waiting/user",
            *(("first output", "silence") if limited else ()),
            *(("T", "Q") if called else ()),
            "state",
        ),
    )
    for row in state.models:
        marked = _Marked(row)
        add_row(
            table,
            row.model,
            row.running,
            marked("concurrency", row.limit),
            row.waiting,
            marked("cost", row.cost),
            marked("requests_per_minute", row.requests_per_minute),
            marked("tokens_per_minute", row.tokens_per_minute),
            marked("windows", row.windows),
            marked("max_running_per_user", row.max_running_per_user),
            marked("max_waiting_per_user", row.max_waiting_per_user),
            *(_limits_words(row.output_limits) if limited else ()),
            *(row.pace if called else ()),
            _condition(row, state.now),
        )
    print_page(table, "no models yet")


def _limits_words(limits: "OutputLimitsRow | None") -> tuple[str, str]:
    """How long a model may be silent now, before its first output and after it, and where its queue moves that, why."""
    if limits is None:
        return "-", "-"
    return _limit_words(limits.first_output, limits.wait_ms), _limit_words(limits.silence, limits.wait_ms)


def _limit_words(limit: "OutputLimitRow | None", wait_ms: float | None) -> str:
    if limit is None:
        return "-"
    if limit.why == "fixed":
        return seconds(limit.ms)
    going = "" if round(limit.target_ms) == round(limit.ms) else f", going to {seconds(limit.target_ms)}"
    wait = "" if wait_ms is None or limit.why not in _OF_QUEUE else f" ({seconds(wait_ms)} to wait)"
    return f"{seconds(limit.ms)}{going}: {_WHY.get(limit.why, limit.why)}{wait}"


def _condition(row: "ModelRow", now: float) -> str:
    """Why nothing of a model begins now, if so."""
    if row.paused:
        return "paused"
    by_worker = row.endpoint is None or row.endpoint.offline  # permits need none
    if row.unserved or (by_worker and not row.workers and not row.running):
        return CONDITIONS["no_worker"]
    if len(row.upstreams) == 1 and (only := row.upstreams[0].breaker) != "closed":
        return f"its breaker is {only.replace('_', '-')}"
    if open_ := sum(upstream.breaker == "open" for upstream in row.upstreams):
        return f"{open_} of {len(row.upstreams)} breakers open"
    if row.held_until and row.held_until > now:
        return f"held by its provider for {seconds(row.held_until - now)}"
    if row.next_start_at and row.next_start_at > now:
        return f"paced, next in {seconds(row.next_start_at - now)}"
    return "; ".join(f"{queue}: {CONDITIONS.get(why, why)}" for queue, why in row.blocked.items())


class _Marked:
    """Shows the limits of one row: `-` for none, and a star behind those that were changed while running."""

    def __init__(self, row: "QueueRow | ModelRow") -> None:
        self._overrides = row.overrides

    def __call__(self, setting: str, value: object) -> str:
        return ("-" if value is None else str(value)) + ("*" if setting in self._overrides else "")


def _set(kind: Kind, name: str, values: Sequence[str], gateway: str, key: str | None, as_json: bool) -> None:
    change = read_values(values)
    answer = answer_of(gateway, key, f"/api/admin/{kind}s/{quote(name, safe='')}", change)
    if kind == "model" and any(value is not None for value in change.values()):
        _warn_of_a_stranger(name, gateway, key)
    if as_json:
        typer.echo(answer.text)
        return
    table = make_table(kind, "setting", "before", "now")
    for setting, pair in msgspec.json.decode(answer.content, type=_Changed).changed.items():
        add_row(table, name, setting, _shown(pair["before"]), _shown(pair["after"]))
    print_table(table)


def _warn_of_a_stranger(name: str, gateway: str, key: str | None) -> None:
    """Say so if nobody offers or configured this model: it may be another one's name, written wrongly."""
    from fairlane.gateway.process.status import StatusError, fetch_state  # noqa: PLC0415 (an HTTP client)

    try:
        _, state = fetch_state(gateway, key)
    except StatusError:
        return  # the change is made, and that is what was asked for
    known = [row.model for row in state.models if (row.workers or row.configured) and row.model != "*"]
    if name in known or any(row.workers for row in state.models if row.model == name):
        return
    names = ", ".join(known[:MOST_NAMES]) + (", …" if len(known) > MOST_NAMES else "")
    warn([f"no worker offers {name} now, and it is not configured; known: {names or 'none'}"])


class _Changed(msgspec.Struct):
    changed: dict[str, dict[str, Any]]


def read_values(values: Sequence[str]) -> dict[str, Any]:
    """`weight=4 paused=true`, as JSON would have it: numbers, true, false and null are such, the rest is text."""
    change: dict[str, Any] = {}
    for text in values:
        setting, equals, value = text.partition("=")
        setting = setting.strip()
        if not equals or not setting or not value.strip():
            stop(f"{text!r} is no change; write name=value, or name=null for what is configured")
        if setting in change:
            stop(f"{setting} is given twice")
        try:
            change[setting] = msgspec.json.decode(value.encode())
        except msgspec.DecodeError:
            change[setting] = None if value.strip().lower() == "none" else value.strip()
    return change


def _shown(value: object) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
