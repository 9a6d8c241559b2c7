"""`fairlane breakers`: the upstreams of a running gateway's models, and having their breakers open or closed."""

from typing import Annotated

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, state_of
from fairlane.gateway.process.limits_cli import ListUnlessTold
from fairlane.gateway.process.tables import add_row, make_table, print_page, seconds

app = typer.Typer(
    cls=ListUnlessTold,
    help="Show the upstreams (servers behind workers) of each model and their breakers, or force one open or closed.",
)

Model = Annotated[str, typer.Argument(help="The model.")]
Upstream = Annotated[
    str, typer.Argument(help="The upstream, as the list names it. Left out: that of workers that name none.")
]
UNNAMED = "(unnamed)"


@app.command("list")
def list_breakers(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show the upstreams of each model: whether something starts through them, and why not. A gateway with keys wants a viewer's
    or an admin's."""
    from fairlane.gateway.process.status import breaker_condition  # noqa: PLC0415 (an HTTP client)

    raw, state = state_of(gateway, key)
    if as_json:
        typer.echo(raw)
        return
    table = make_table("model", "upstream", "workers", "breaker", "since", "opened", "why")
    for model in state.models:
        for row in model.upstreams:
            since = "-" if row.since is None else f"{seconds(max(state.now - row.since, 0))} ago"
            told = row.workers, breaker_condition(row, state.now), since, row.openings or "-", row.why or "-"
            add_row(table, model.model, row.upstream or UNNAMED, *told)
    print_page(table, "no worker names its upstream, and no breaker has anything to tell")


@app.command("open")
def open_breaker(
    model: Model, upstream: Upstream = "", gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """Let nothing of a model start through an upstream, until `auto` or `close`. What runs goes on."""
    _force(model, upstream, "open", gateway, key, as_json)


@app.command("close")
def close_breaker(
    model: Model, upstream: Upstream = "", gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """Let everything start, whatever fails, until `auto` or `open`."""
    _force(model, upstream, "closed", gateway, key, as_json)


@app.command("auto")
def auto_breaker(
    model: Model, upstream: Upstream = "", gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """Let the breaker open and close by itself again, from closed on. Ends also a wait that the provider asked for (429)."""
    _force(model, upstream, "auto", gateway, key, as_json)


def _force(model: str, upstream: str, state: str, gateway: str, key: str | None, as_json: bool) -> None:
    change = {"model": model, "upstream": upstream, "breaker": state}
    told = ask(gateway, key, "/api/admin/breakers", as_json, change, method="POST")
    if told is not None:
        where = f" through {upstream}" if upstream else ""
        typer.echo(f"the breaker of {model}{where}: {told['before']} → {told['breaker']}")
