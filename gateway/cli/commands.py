"""Commands that read or change a running gateway, as one table: each is one HTTP request and one way to print its answer."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any
from urllib.parse import quote

import typer

from fairlane.gateway.cli import config, erase, keys
from fairlane.gateway.cli.client import Config, Gateway, decoded, warn
from fairlane.gateway.cli.drain import worker_id
from fairlane.gateway.cli.tables import Column, details, print_table, shown
from fairlane.gateway.cli.values import read_time, read_values
from fairlane.workers.options import expanded


@dataclass(frozen=True, slots=True)
class Command:
    """One request to the gateway, and one table or line of its answer."""

    help: str
    path: str
    """Its `{names}` are the command's first arguments."""
    method: str = "GET"
    arguments: tuple[str, ...] = ()
    """Further arguments, as members of the body."""
    options: tuple[str, ...] = ()
    """Members of the query of a GET, and of the body of a change."""
    rows: str = ""
    """Where the answer's rows are; "models.upstreams": those of each model. Without rows the whole answer is printed."""
    columns: str = ""
    values: str = ""
    """What NAME=VALUE arguments set, as their help."""
    values_in: str = ""
    """The member of the body that has these values, by their dotted names."""
    done: str = ""
    """The line that reports a change, with `{members}` of the answer."""
    body: tuple[tuple[str, Any], ...] = ()
    """Members of the body that are always the same."""
    in_query: bool = False
    """Whether the arguments and options of a change are in its query."""


_ONLY = "Only with this "
OPTIONS: Mapping[str, tuple[type, str]] = {
    "action": (str, f"{_ONLY}action, such as update, cancel, create, revoke."),
    "after": (str, "Continue after this row, as the last page says."),
    "all": (bool, "Also with default values."),
    "by": (str, "Up to three of model, key, user, tier, status, code, route, day, hour. [default: model]"),
    "code": (str, f"{_ONLY}error code, such as UPSTREAM_ERROR."),
    "csv": (bool, "Print CSV."),
    "from": (str, "From this day (UTC), such as 2026-11-01."),
    "key-id": (str, f"{_ONLY}API key, by its id."),
    "kind": (str, f"{_ONLY}kind."),
    "limit": (int, "Maximum number of rows."),
    "model": (str, f"{_ONLY}model."),
    "now": (bool, "Also end the key's open requests and tasks."),
    "percent": (int, "Percentage of a route's tasks."),
    "queue": (str, f"{_ONLY}queue, such as free_stream."),
    "requested-model": (str, f"{_ONLY}model or route in the request."),
    "route": (str, f"{_ONLY}route."),
    "status": (str, "The status; in lists, only with this status."),
    "target": (str, "Only changes of this, such as 'key acme' or queue."),
    "task": (str, f"{_ONLY}task, by its id."),
    "text": (str, "Only with this text in an id, a user or a note."),
    "tier": (str, f"{_ONLY}tier."),
    "to": (str, "Before this day (UTC)."),
    "until": (str, "Its end: 12h, 7d, a time such as 2027-01-31T06:00 (UTC), or null for none."),
    "upstream": (str, "The upstream, as `breaker list` names it. [default: that of workers without a name for it]"),
    "user": (str, f"{_ONLY}user."),
    "actor": (str, "Only changes made with this API key, by its id."),
    "worker": (str, f"{_ONLY}worker, by its name or id."),
}  # fmt: skip
_SENT_AS = {"key-id": "key", "requested-model": "requestedModel"}
_PAGE = ("after", "limit")
_DAYS = ("from", "to")
_OVERVIEW = "/api/admin/overview"
ENDPOINT_VALUES = (
    "Settings as NAME=VALUE, such as concurrency=8 methods=GET,POST. set_headers.Authorization=env:API_AUTH reads the value from "
    "an environment variable. null restores the default."
)
LIMIT_VALUES = "Settings as NAME=VALUE; null restores the configured value."


def _adopt(config: Config = None) -> None:
    """Let the replicas of the configured Redis use this database, if theirs is lost permanently."""
    from fairlane.gateway.cli.database import adopt  # noqa: PLC0415 (SQLAlchemy)

    adopt(config)


GROUPS = {
    "key": "Manage API keys and worker tokens.",
    "queue": "Show and change the queues.",
    "model": "Show and change the models.",
    "user": "Show users, and erase their data.",
    "task": "Find and cancel tasks.",
    "endpoint": "Manage HTTP endpoints behind a queue.",
    "batch": "Show and cancel batches.",
    "webhook": "Show and disable webhooks.",
    "breaker": "Show and set the circuit breakers of upstreams.",
    "override": "Override settings of queues, models and routes at run time.",
    "balance": "Show and grant credits.",
    "usage": "Report usage.",
    "audit": "Show the audit log and rejections.",
    "config": "Check the configuration, and show the settings in effect.",
    "db": "Repair the SQL database.",
}
"""The nouns, with their help."""

COMMANDS: Mapping[str, Command | Callable[..., None]] = {
    "key create": keys.create,
    "key list": Command(
        "List API keys and worker tokens.",
        "/api/admin/keys",
        rows="keys",
        columns="id kind status tier=settings.tier scopes=settings.scopes expires:time last_used=lastUsedAt:time "
        "source note",
        options=("text", "kind", *_PAGE),
    ),
    "key show": Command(
        "Show one key: settings, remaining limits, secrets.", "/api/admin/keys/{key_id}", options=("user",)
    ),
    "key update": Command(
        "Change a key on all gateways, within a second.\n\nfairlane key update app tier=free expires=null\n\n"
        "fairlane key update site limits.tokens_per_day=1000000 quota=null",
        "/api/admin/keys/{key_id}",
        method="PATCH",
        values=f"{keys.VALUES_HELP} null restores the default.",
    ),
    "key rotate": keys.rotate,
    "key revoke": Command(
        "Revoke a key permanently. Requests under way finish, unless --now is given.",
        "/api/admin/keys/{key_id}/revoke",
        method="POST",
        options=("now",),
        done="{id} is revoked; {cancelled} tasks cancelled",
    ),
    "queue list": Command(
        "List the queues. * marks settings that are overridden at run time.",
        _OVERVIEW,
        rows="queues",
        columns="queue weight share:percent waiting max_length=maxLength oldest=oldestWaitMs:duration "
        "max_wait=maxWaitMs:duration running max_running=maxRunning reserved admission paused blocked",
    ),
    "queue update": Command(
        "Change a queue on all gateways. Survives restarts.\n\nfairlane queue update free_batch weight=0.5 paused=true",
        "/api/admin/queues/{name}",
        method="PATCH",
        values=LIMIT_VALUES,
        rows="changed",
    ),
    "model list": Command(
        "List the models. * marks settings that are overridden at run time.",
        _OVERVIEW,
        rows="models",
        columns="model running concurrency=limit waiting workers slots cost requests/min=requestsPerMinute "
        "tokens/min=tokensPerMinute windows running/user=maxRunningPerUser waiting/user=maxWaitingPerUser "
        "cooldown_until=cooldownUntil:time cooldown_by=cooldownBy paused blocked",
    ),
    "model update": Command(
        "Change a model on all gateways. Survives restarts.\n\nfairlane model update deepseek-chat concurrency=8",
        "/api/admin/models/{name}",
        method="PATCH",
        values=LIMIT_VALUES,
        rows="changed",
    ),
    "user list": Command(
        "List the users with the most waiting tasks.",
        "/api/admin/users",
        rows="users",
        columns="user waiting running tokens_in_10_min=tokens share:percent waits_for=model",
        options=("limit",),
    ),
    "user erase": erase.erase,
    "task list": Command(
        "Find tasks, newest first.\n\nfairlane task list --status failed --user ann",
        "/api/admin/tasks",
        rows="tasks",
        columns="task=taskId status user requested=requestedModel model queue "
        "queued_at=enqueuedAt:time stage request=requestId code",
        options=(*("text", "status", "user", "queue", "model", "requested-model", "worker", "code"), *_PAGE),
    ),
    "task cancel": Command(
        "Cancel one task, or all waiting and running tasks that match.\n\n"
        "fairlane task cancel --user flooder --status queued",
        "/api/admin/tasks/cancel",
        method="POST",
        options=("task", "user", "queue", "model", "worker", "status", "limit"),
        in_query=True,
        done="{cancelled} cancelled",
    ),
    "endpoint list": Command(
        "List the endpoints, with their mean latency and throughput.",
        "/api/admin/endpoints",
        rows="endpoints",
        columns="endpoint=name url=settings.url windows=line.windows running=line.running limit=line.limit "
        "waiting=line.waiting workers=line.workers latency=line.meanMs:duration per_second=line.perSecond source "
        "blocked=line.reason",
    ),
    "endpoint create": Command(
        "Add an endpoint on all gateways. Survives restarts.\n\n"
        'fairlane endpoint create image "https://images.example.com/v1/*" windows=50/1s concurrency=8',
        "/api/admin/endpoints",
        method="POST",
        arguments=("name", "url"),
        values=ENDPOINT_VALUES,
    ),
    "endpoint update": Command(
        "Change an endpoint that was added at run time.",
        "/api/admin/endpoints/{name}",
        method="PATCH",
        values=ENDPOINT_VALUES,
    ),
    "endpoint delete": Command(
        "Delete an endpoint that was added at run time. Requests under way finish.",
        "/api/admin/endpoints/{name}",
        method="DELETE",
        done="{name} is deleted",
    ),
    "batch list": Command(
        "List batches, newest first. --status unended: those that have not ended.",
        "/api/admin/batches",
        rows="batches",
        columns="batch=id user status call=endpoint model lines=counts.total completed=counts.completed "
        "failed=counts.failed waiting=linesWaiting running=linesRunning created=createdAt:time ended=endedAt:time "
        "expires=expiresAt:time blocked_by=waitsFor:json error",
        options=("status", "key-id", "user", *_PAGE),
    ),
    "batch cancel": Command(
        "Cancel a batch. Answers so far stay in its files.",
        "/api/admin/tasks/cancel",
        method="POST",
        arguments=("batch",),
        in_query=True,
        done="{cancelled} cancelled",
    ),
    "webhook list": Command(
        "List the webhooks of all keys.",
        "/api/admin/webhooks",
        rows="webhooks",
        columns="webhook=id key user url events waiting enabled disabled_reason=disabledReason "
        "failing=failing.error since=failing.since:time",
        options=("key-id", *_PAGE),
    ),
    "webhook disable": Command(
        "Disable a webhook. Its owner can enable it again.",
        "/api/admin/webhooks/{webhook}",
        method="PATCH",
        body=(("enabled", False),),
        done="{id} is disabled: {url}",
    ),
    "breaker list": Command(
        "List the upstreams of each model and their circuit breakers.",
        _OVERVIEW,
        rows="models.upstreams",
        columns="model upstream workers breaker forced since:time until:time opened=openings probes "
        "cooldown_until=cooldownUntil:time cooldown_by=cooldownBy reason",
    ),
    "breaker update": Command(
        "Open or close a circuit breaker until it is reset: BREAKER is open, closed or auto (reset; ends a 429 cooldown).",
        "/api/admin/models/{model}",
        method="PATCH",
        arguments=("breaker",),
        options=("upstream",),
        rows="changed",
    ),
    "override list": Command(
        "List the overrides, newest first.",
        "/api/admin/overrides",
        rows="overrides",
        columns="id target name values percent status problem until:time created_by=createdBy created=createdAt:time",
    ),
    "override create": Command(
        "Override settings on all gateways: TARGET is queue, model or route. Survives restarts.\n\n"
        "fairlane override create route chat model=qwen-72b --percent 10\n\n"
        "fairlane override create route chat tiers.paid.fallbacks=a,b --until 7d",
        "/api/admin/overrides",
        method="POST",
        arguments=("target", "name"),
        values=LIMIT_VALUES,
        values_in="values",
        options=("percent", "until"),
    ),
    "override update": Command(
        "Change the percentage or the end of an override, make it permanent for all tasks, or roll it back.\n\n"
        "fairlane override update o1a2b3c4d5 --status promoted",
        "/api/admin/overrides/{override_id}",
        method="PATCH",
        options=("percent", "until", "status"),
    ),
    "balance list": Command(
        "List the credits of keys and users.",
        "/api/admin/balances",
        rows="rows",
        columns="key user available balance granted spent reserved budget=budget.limit used=budget.used "
        "per=budget.per until=budget.ends:time on_exhausted=otherwise active",
        options=("key-id", "user", "text", *_PAGE),
    ),
    "balance grant": keys.grant,
    "balance ledger": Command(
        "List grants and what tasks have cost, newest first.",
        "/api/admin/balances/ledger",
        rows="rows",
        columns="at:time key user kind id fund until=ends:time amount reserved refunded granted_by=grantedBy note",
        options=("key-id", "user", "kind", *_DAYS, *_PAGE, "csv"),
    ),
    "usage list": Command(
        "Report tokens, times and costs of ended tasks.\n\nfairlane usage list --by day,model --csv > usage.csv",
        "/api/admin/usage",
        rows="rows",
        columns="tasks failed cancelled input=inputTokens output=outputTokens cached=cachedTokens "
        "reasoning=reasoningTokens waited=waitedMs:duration ran=ranMs:duration cost",
        options=("by", *_DAYS, "model", "key-id", "user", "tier", "route", "limit", "csv"),
    ),
    "audit list": Command(
        "List the changes that operators made, newest first.",
        "/api/admin/audit",
        rows="entries",
        columns="at:time actor from action target before after",
        options=("actor", "action", "target", *_DAYS, *_PAGE),
    ),
    "audit rejections": Command(
        "Count rejected requests by minute, key and error code.",
        "/api/admin/rejections",
        rows="rejections",
        columns="minute:time key code count",
        options=("key-id", "code", *_DAYS, *_PAGE),
    ),
    "config check": config.check,
    "config show": config.show,
    "db adopt": _adopt,
}


def group(name: str) -> typer.Typer:
    """Return the commands of a noun."""
    app = typer.Typer(no_args_is_help=True, help=GROUPS[name])
    for path, command in COMMANDS.items():
        noun, verb = path.split()
        if noun == name:
            # a negative number of credits is not an option
            context = {"ignore_unknown_options": True} if command is keys.grant else None
            function = function_of(command) if isinstance(command, Command) else command
            app.command(verb, context_settings=context)(function)
    return app


def function_of(command: Command) -> Callable[..., None]:
    """Return the function that Typer makes a command of."""
    required = inspect.Parameter.empty
    parameters: dict[str, tuple[Any, Any]] = {
        "gateway": (Gateway, required),
        **{name: (Annotated[str, typer.Argument()], required) for name in _arguments(command)},
    }
    if command.values:
        argument = typer.Argument(metavar="NAME=VALUE...", help=command.values)
        updates = command.method == "PATCH"
        kind = list[str] if updates else list[str] | None
        parameters["values"] = (Annotated[kind, argument], required if updates else None)
    for option in command.options:
        of, text = OPTIONS[option]
        flag = typer.Option(f"--{option}", help=text)
        parameters[_parameter(option)] = (Annotated[of | None, flag], None)

    def run(**given: Any) -> None:
        _run(command, **given)

    run.__doc__ = command.help
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in parameters.items()
        ]
    )
    return expanded(run)


def _arguments(command: Command) -> list[str]:
    return [*(name for _, name, _, _ in Formatter().parse(command.path) if name), *command.arguments]


def _parameter(option: str) -> str:
    return f"option_{option.replace('-', '_')}"


def _run(command: Command, gateway: Gateway, values: Sequence[str] | None = None, **given: Any) -> None:
    options = {
        _SENT_AS.get(name, name): value for name in command.options if (value := given[_parameter(name)])
    }
    if "worker" in options:
        options["worker"] = worker_id(gateway, options["worker"])
    if "until" in options:
        options["until"] = None if options["until"] == "null" else read_time("--until", options["until"])
    if csv := options.pop("csv", False):
        options["format"] = "csv"
    path = command.path.format_map({name: quote(given[name], safe="") for name in _arguments(command)})
    members = {**{name: given[name] for name in command.arguments}, **options}
    if command.method == "GET" or command.in_query:
        answer = gateway.request(path, command.method, query=members)
    else:
        read = read_values(values or (), dotted=bool(command.values_in))
        body = members | dict(command.body) | ({command.values_in: read} if command.values_in else read)
        answer = gateway.request(path, command.method, body=body)
    if csv or gateway.as_json:
        typer.echo(answer.text, nl=not csv)
    else:
        _print(command, decoded(answer))


def _print(command: Command, answer: Mapping[str, Any]) -> None:
    if reason := answer.get("databaseError"):
        warn(f"the database is unavailable; this is what the gateway and Redis know ({reason})")
    if command.done:
        typer.echo(command.done.format_map(answer))
    elif command.rows == "changed":
        changed = answer["changed"].items()
        print_table(
            ("setting", "before", "now"),
            [(name, shown(pair["before"]), shown(pair["after"])) for name, pair in changed],
        )
    elif command.rows:
        _print_rows(command, answer)
    else:
        print_table(("name", "value"), details(answer))
    for note in (*answer.get("notes", ()), *answer.get("warnings", ())):
        warn(note)


def _print_rows(command: Command, answer: Mapping[str, Any]) -> None:
    columns = [Column(text) for text in (*answer.get("by", ()), *command.columns.split())]
    first, _, inner = command.rows.partition(".")
    rows = answer[first]
    if inner:
        rows = [{**row, **part} for row in rows for part in row[inner]]
    if rows and "total" in answer:
        rows = [*rows, {answer["by"][0]: "all", **answer["total"]}]
    if rows:
        print_table(
            [column.title for column in columns], [[column.cell(row) for column in columns] for row in rows]
        )
    else:
        typer.echo("nothing matches")
    if after := answer.get("next"):
        typer.echo(f"there are more: --after {after}")
    elif answer.get("more"):
        typer.echo("there are more: --limit")
