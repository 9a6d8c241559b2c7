"""`fairlane users`, `tasks`, `cancel` and `drain`: who and what waits at a running gateway, and what an operator ends."""

import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, query_of, state_of, stop
from fairlane.gateway.process.tables import add_row, make_table, print_page

User = Annotated[str, typer.Option(help="The user whose tasks they are, as the task list names it.")]
Queue = Annotated[str, typer.Option(help="The queue, such as free_stream.")]
Model = Annotated[str, typer.Option(help="The model that they ask for.")]
Worker = Annotated[
    str, typer.Option(help="The worker that runs them: its name or id, as `fairlane status` shows it.")
]


def status(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show queues, models and workers. A gateway with keys wants a viewer's or an admin's."""
    raw, state = state_of(gateway, key)
    if as_json:
        typer.echo(raw)
        return
    from fairlane.gateway.process.status import print_state  # noqa: PLC0415 (an HTTP client)

    print_state(state)


def users(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show no more than so many.")] = 20,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show the users with the most waiting tasks: who caused a backlog. A gateway with keys wants a viewer's or an admin's."""
    told = ask(gateway, key, f"/api/admin/users?limit={limit}", as_json)
    if told is None:
        return
    table = make_table("user", "waiting", "running", "tokens in 10 min", "share", "waits for")
    for row in told["users"]:
        share = "-" if row["share"] is None else f"{row['share']:.0%}"
        add_row(table, row["user"], row["waiting"], row["running"], row["tokens"], share, row["model"] or "-")
    print_page(table, "no user has tasks")


def tasks(
    text: Annotated[
        str,
        typer.Argument(
            help="A part of the id, the user or the failure's sentence, or the id of the request."
        ),
    ] = "",
    state: Annotated[str, typer.Option(help="queued, executing, completed, failed or cancelled.")] = "",
    user: User = "",
    queue: Queue = "",
    model: Model = "",
    asked: Annotated[
        str, typer.Option(help="The route or model that the caller named, whichever answered.")
    ] = "",
    worker: Worker = "",
    code: Annotated[str, typer.Option(help="The code of a failure, such as UPSTREAM_ERROR.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show no more than so many.")] = 20,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Find tasks, newest first. A gateway with keys wants a viewer's or an admin's.

    fairlane tasks req_5f0c9a

    fairlane tasks --state failed --user ann
    """
    worker_id = _worker_id(gateway, key, worker, may_be_gone=True) if worker else ""
    wanted = {"text": text, "state": state, "user": user, "queue": queue, "model": model, "worker": worker_id}
    path = f"/api/admin/tasks{query_of({**wanted, 'asked': asked, 'code': code, 'limit': limit})}"
    told = ask(gateway, key, path, as_json)
    if told is None:
        return
    staged = any(row.get("stage") for row in told["tasks"])
    table = make_table(
        *("task", "state", "user", "asked", "model", "queue", "age", *(("stage",) if staged else ())),
        *("request", "code"),
    )
    for row in told["tasks"]:
        age = f"{(told['now'] - (row['enqueuedAt'] or told['now'])) / 1000:.0f}s"
        asked = row["asked"]
        shown = [row["taskId"], row["status"], row["user"], asked, row["model"], row["queue"], age]
        shown += [stage_of(row, told["now"])] if staged else []
        shown += [row["requestId"], row["code"]]
        add_row(table, *(cell or "-" for cell in shown))
    print_page(table, "no task is known that matches")
    if told["next"]:
        typer.echo(f"there are more: --limit, or --json and the call's `after` ({told['next']})")


def stage_of(row: Mapping[str, Any], now: int) -> str:
    """The stage of a chain, its part, and of one under way for how long it has been in it."""
    name = row.get("stage") or ""
    if name and row["part"] is not None:
        name += f" #{row['part']}"
    under_way = row["status"] in ("queued", "executing") and row.get("stageAt")
    return f"{name} {(now - row['stageAt']) / 1000:.0f}s" if name and under_way else name


def cancel(
    user: User = "",
    queue: Queue = "",
    model: Model = "",
    worker: Worker = "",
    state: Annotated[str, typer.Option(help="queued or executing. [default: both]")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Cancel no more than so many.")] = 1000,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Cancel the tasks that wait or run and match all that is given. Written to the audit record.

    fairlane cancel --user flooder --state queued
    """
    if not (user or queue or model or worker):
        stop("say whose or which tasks: --user, --queue, --model or --worker")
    worker_id = _worker_id(gateway, key, worker) if worker else ""
    wanted = {"user": user, "queue": queue, "model": model, "worker": worker_id, "state": state}
    path = f"/api/admin/tasks/cancel{query_of({**wanted, 'limit': limit})}"
    told = ask(gateway, key, path, as_json, method="POST")
    if told is not None:
        typer.echo(f"{told['cancelled']} cancelled{'; there are more, call again' if told['more'] else ''}")


def drain(
    worker: Annotated[str, typer.Argument(help="Its name or id, as `fairlane status` shows it.")],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Give a worker no more tasks; what it runs goes on. Written to the audit record."""
    worker_id = quote(_worker_id(gateway, key, worker), safe="")
    told = ask(gateway, key, f"/api/admin/workers/{worker_id}/drain", as_json, method="POST")
    if told is not None:
        typer.echo(f"{told['name'] or told['workerId']} drains")


def _worker_id(gateway: str, key: str | None, worker: str, *, may_be_gone: bool = False) -> str:
    """The id of the worker with this name or id. `may_be_gone`: what no connected one has is taken for an id."""
    _, state = state_of(gateway, key)
    ids = [row.worker_id for row in state.workers if row.worker_id == worker]
    ids = ids or [row.worker_id for row in state.workers if row.name == worker]
    if not ids and may_be_gone and re.fullmatch(r"[0-9a-f]{16}", worker):
        return worker
    if not ids:
        known = ", ".join(row.name or row.worker_id for row in state.workers)
        stop(f"no worker {worker!r} is connected; there are {known or 'none'}")
    if len(ids) > 1:
        stop(f"{len(ids)} workers have this name; say which by its id: {', '.join(ids)}")
    return ids[0]
