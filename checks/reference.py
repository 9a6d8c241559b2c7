"""Write the generated pages of the reference: `python -m checks.reference`. A test compares the committed pages with the program.

In docs/http-api.md, what begins with `## Results` is written by hand and stays.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import yaml
from typer.main import get_command

from checks.words import ROOT
from fairlane.gateway.api.events import DATA, EVENTS, data_of
from fairlane.gateway.app import App
from fairlane.gateway.batches.feature import GAUGES as BATCHES
from fairlane.gateway.cli.main import app
from fairlane.gateway.error_codes import BUSY, ERROR_CODES, GROUPS
from fairlane.gateway.errors import BARE
from fairlane.gateway.files.feature import GAUGES as FILES
from fairlane.gateway.metrics.exposition import FLAGS, PROVIDER
from fairlane.gateway.metrics.gauges import PROCESS_GAUGES, STORE_GAUGES
from fairlane.gateway.responses.quota import GAUGES as RESPONSES
from fairlane.gateway.settings import settings_table
from fairlane.queues.failures import Category
from fairlane.queues.metrics import METRICS

RULES = ROOT / "deploy" / "prometheus" / "fairlane.rules.yml"
BY_HAND = "## Results\n"
TAGS = {
    "native": "Fairlane API",
    "account": "Account",
    "webhooks": "Webhooks",
    "permits": "Permits",
    "openai": "OpenAI API",
    "anthropic": "Anthropic API",
    "operators": "Operators",
    "health": "Health",
}
CLI = """\
# Commands

`fairlane COMMAND --help` explains a command, its arguments and its options, with examples.

- Commands that ask a gateway have `--gateway`, `--api-key` and `--json`. `FAIRLANE_GATEWAY` and `FAIRLANE_API_KEY` set the first
  two. They need a key with the scope `viewer`; commands that change something need `admin`.
- Long lists have `--after` and `--limit`.
- Settings are `name=value`; `name=null` restores a default."""
METRICS_PAGE = """\
# Metrics and alerts

`GET /metrics` needs a key with the scope `metrics`. [Operate](operate.md#monitor-with-prometheus) sets up Prometheus.

- Labels never name a user, key or task. Configured models and the first hundred others keep their names; the rest is `other`.
- Durations begin at the submission, so they include waiting. Names with `gen_ai_` are OpenTelemetry's.

## Process metrics

Each also has the label `process`. Add processes up: `sum by (queue) (rate(fairlane_tasks_accepted_total[5m]))`.
"""
ERRORS = """\
# Errors

```json
{{"error": "max_tokens must be at least 1", "code": "INVALID_REQUEST", "docsUrl": "/docs#INVALID_REQUEST"}}
```

- `docsUrl` leads to the gateway's explanation of the code. It is omitted for {bare}.
- `retryAfterMs` and the header `Retry-After` are the delay before a retry. `x-should-retry: false`: a retry is useless.
- A failed task also has `category` and `taskId`. After a timeout, `waitedFor` is `queue`, `worker`, `cooldown` or `model`.
- `/v1` returns OpenAI's shape: `error.message`, `type`, `param`, `code` and `docs_url`.
- `/v1/messages` returns Anthropic's shape: the code is `error.details.error_code`; 529 replaces 503 for {busy}.
"""
HTTP_API = """\
# HTTP API

Send `Authorization: Bearer <key>`. The gateway serves this reference with all schemas at `/docs`, and as OpenAPI at
`/openapi.json`. [Errors](errors.md) has all error codes.
"""
OPERATORS = """\
`GET` needs a key with the scope `viewer`, other methods one with `admin`. Lists have `limit`, and `after` for the `next` of the
page before. `?check=true` validates a change without making it. In a `PATCH`, `null` restores what is configured. Times are
milliseconds since 1970.
"""
TASK_FIELDS = """\
`POST /api/openai` takes an OpenAI chat request with these fields. `POST /api/tasks` takes these fields and the next ones.
Calls on `/v1` take headers instead.
"""
EVENTS_TEXT = """\
`GET /api/task/{task_id}/events`, and calls with `stream`, return server-sent events. Each has `taskId` and `ts` (milliseconds
since 1970). `done`, `error` and `cancelled` are the last ones. [The guide](apps.md#without-the-client) has rules for readers.

- `Last-Event-ID` or `?after=`: continue after this event. 204: it was the last one.
- `?fromLatest=1`: skip existing events. `?token=`: the token of a `streamUrl`, instead of a key.
"""
COMMON_OPTIONS = ("--gateway", "--api-key", "--json", "--after", "--limit")


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = [[re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows]
    return [
        f"| {' | '.join(heads)} |",
        "|" + "---|" * len(heads),
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def code(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def sentence(text: str) -> str:
    """Return a description as one line that begins with a capital and ends with a full stop."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


# ---- cli.md ----------


def leaves(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the commands below a group, with their names."""
    for part, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from leaves(inner, (*name, part))
        else:
            yield (*name, part), inner


def usage(name: tuple[str, ...], command: Any) -> str:
    words = ["fairlane", *name]
    for one in command.params:
        if one.param_type_name == "argument":
            metavar = one.metavar or one.name.upper()
            words.append(metavar if one.required or metavar.startswith("[") else f"[{metavar}]")
    return " ".join(words)


def options(command: Any) -> Iterator[str]:
    for one in command.params:
        name = max(one.opts, key=len)
        if one.param_type_name != "argument" and name not in COMMON_OPTIONS and not one.hidden:
            yield name


def cli() -> str:
    """Return the reference of all commands."""
    lines = [CLI]
    groups: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for name, command in leaves(get_command(app)):
        groups.setdefault(name[0] if len(name) > 1 else "", []).append((name, command))
    for group, commands in groups.items():
        title = f"fairlane {group}" if group else "Gateway"
        lines += ["", f"## {title}" if not group else f"## `{title}`", ""]
        rows = (
            (
                f"`{usage(name, command)}`",
                sentence(re.split(r"\n\n|\. ", command.help or "")[0]),
                code(options(command)),
            )
            for name, command in commands
        )
        lines += table(("command", "what it does", "options"), rows)
    return "\n".join(lines) + "\n"


# ---- metrics.md ----------


def _metric(name: str, labels: Sequence[str], text: str, values: Sequence[str] = ()) -> tuple[str, str, str]:
    known = [value for value in values if value]
    return (
        f"`{name}`",
        " ".join(f"`{label}`" for label in labels),
        sentence(text + (f": {', '.join(known)}" if known and ":" not in text else "")),
    )


def _placeholders(text: str) -> str:
    """Return a text of a rule without Prometheus's templates."""
    text = re.sub(r"\{\{ with .*?\{\{ end \}\}", "*upstream*", text)
    return re.sub(r"\{\{ \$value.*?\}\}", "*N*", re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", text))


def alerts() -> Iterator[tuple[str, str, str]]:
    """Yield each alert with its severities, each with its delay, and its meaning."""
    found: dict[str, list[Any]] = {}
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        found.setdefault(rule["alert"], []).append(rule)
    for name, rules in found.items():
        severity = (f"{one['labels']['severity']} {one.get('for', '')}".strip() for one in rules)
        yield name, ", ".join(severity), sentence(_placeholders(rules[0]["annotations"]["summary"]))


def metrics() -> str:
    """Return the reference of metrics and alerts."""
    heads = ("metric", "labels", "what it is")
    process = [
        _metric(
            metric.name,
            ((PROVIDER[0],) if metric.name.startswith("gen_ai_") else ()) + metric.labels,
            metric.help + (" (histogram)" if metric.bounds else ""),
            metric.first,
        )
        for metric in METRICS
    ]
    shown = dict(FLAGS)
    store = [_metric(one.name, one.labels, one.help) for one in STORE_GAUGES]
    store.append(_metric("fairlane_survey_success", (), shown["fairlane_survey_success"]))
    store.append(_metric("fairlane_build_info", ("version",), "1; the version of this gateway"))
    database = [_metric(one.name, one.labels, one.help) for one in (*BATCHES, *FILES, *RESPONSES)]
    database.append(
        _metric("fairlane_database_survey_success", (), shown["fairlane_database_survey_success"])
    )
    system = (
        ("process_cpu_seconds_total", "Processor time of the process"),
        ("process_resident_memory_bytes", "Memory of the process"),
        ("process_virtual_memory_bytes", "Address space of the process"),
        ("process_start_time_seconds", "Start of the process, since 1970"),
        ("process_open_fds", "Open files and sockets"),
        ("process_max_fds", "Maximum of open files and sockets"),
    )
    lines = [
        METRICS_PAGE,
        *table(
            heads,
            [
                *process,
                *(_metric(one.name, one.labels, one.help) for one in PROCESS_GAUGES),
                *(_metric(name, (), text) for name, text in system),
            ],
        ),
        "",
        "## Redis metrics",
        "",
        "Every replica returns the same values: use `max`, not `sum`. They are missing while Redis is unavailable.",
        "",
        *table(heads, store),
        "",
        "## Database metrics",
        "",
        "The same on every replica, read at most every ten seconds, and missing while the database is unavailable.",
        "",
        *table(heads, database),
        "",
        "## Alerts",
        "",
        "The rules are in [`fairlane.rules.yml`](../deploy/prometheus/fairlane.rules.yml). Each alert says what to do.",
        "",
        *table(("alert", "severity, after", "means"), alerts()),
    ]
    return "\n".join(lines) + "\n"


# ---- errors.md ----------

ACTIONS = {
    Category.CAPACITY: "No answer came in time, or no capacity is free. Retry later; add capacity or raise limits.",
    Category.BAD_OUTPUT: "The answer is not what the request asks for. Retry; change the prompt or the schema.",
    Category.UPSTREAM: "The model's server failed. Check the provider, its key and its account.",
    Category.WORKER: "The worker failed. Check its log.",
    Category.GATEWAY: "The gateway or its Redis failed. Retry; check the gateway's log.",
    Category.REQUEST: "The request cannot succeed as it is. Fix it.",
    Category.CANCELLED: "A client or an operator cancelled the task.",
}


def errors() -> str:
    """Return the reference of error codes."""
    lines = [
        ERRORS.format(bare=code(sorted(BARE)), busy=code(sorted(BUSY))),
        "## Categories",
        "",
        "Failed tasks have a category: what to do, in a word.",
        "",
        *table(("category", "meaning"), ((f"`{one}`", ACTIONS[one]) for one in Category)),
        "",
        "## Codes",
        "",
        "Two statuses: of a rejected call, and of an accepted task that failed. In parentheses: the name on `/v1`.",
    ]
    for group in GROUPS:
        rows = []
        for row in (one for one in ERROR_CODES.values() if one.group == group):
            name = f'<a id="{row.code}"></a>`{row.code}`'
            if row.v1_code != row.code:
                name += f" (`{row.v1_code}`)"
            native, v1 = (", ".join(map(str, row.statuses(api))) for api in ("native", "openai"))
            statuses = native if native == v1 else f"{native} (`/v1`: {v1})"
            rows.append((name, statuses, "yes" if row.retryable else "no", row.cause, row.action))
        lines += ["", f"### {group}", "", *table(("code", "status", "retry", "cause", "what to do"), rows)]
    return "\n".join(lines) + "\n"


# ---- http-api.md ----------


def _operations(document: Mapping[str, Any], tag: str) -> Iterator[tuple[str, str]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["tags"] == [tag] and method != "head":
                yield f"`{method.upper()} {path}`", sentence(operation["summary"])


def _fields(schema: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, field in schema["properties"].items():
        dashed = re.sub("([A-Z])", r"-\1", name).lower().removesuffix("-ms")
        header = headers.get(f"x-fairlane-{dashed}")
        yield f"`{name}`", f"`{header}`" if header else "-", sentence(_about(field))


def _about(field: Mapping[str, Any]) -> str:
    """Return the description of a field, or of its first kind of value that has one."""
    kinds = (field, *field.get("anyOf", ()))
    return next((kind["description"] for kind in kinds if "description" in kind), "")


def _events() -> Iterator[tuple[str, str, str, str]]:
    for name, event_id in EVENTS.items():
        fields = dict.fromkeys(
            field
            for data in data_of(name)
            for field in DATA[data]["properties"]
            if field not in ("taskId", "ts")
        )
        about = sentence(DATA[data_of(name)[0]]["description"].split(". ")[0])
        yield f"`{name}`", "yes" if event_id and "pattern" in event_id else "no", code(fields), about


def http_api(page: str) -> str:
    """Return the reference of calls and events, and what `page` has by hand."""
    document = App(cast(Any, None)).openapi()
    post = document["paths"]["/v1/chat/completions"]["post"]
    headers = {one["name"]: _header(one["name"]) for one in post["parameters"]}
    schemas = document["components"]["schemas"]
    lines = [HTTP_API, "## Operations"]
    for tag, title in TAGS.items():
        about = [OPERATORS] if tag == "operators" else []
        lines += [
            "",
            f"### {title}",
            "",
            *about,
            *table(("call", "what it does"), _operations(document, tag)),
        ]
    lines += [
        "",
        "## Task fields",
        "",
        TASK_FIELDS,
        *table(("field", "header on `/v1`", "meaning"), _fields(schemas["NativeRequest"], headers)),
        "",
        "Fields of `POST /api/tasks` alone:",
        "",
        *table(
            ("field", "meaning"),
            (
                (name, meaning)
                for name, _, meaning in _fields(schemas["TaskRequest"], {})
                if name.strip("`") not in schemas["NativeRequest"]["properties"]
            ),
        ),
        "",
        "Calls that submit a task also take `Idempotency-Key`. With a delegating key, all calls take `X-Fairlane-User` and "
        "`X-Fairlane-Tier`.",
        "",
        "## Events",
        "",
        EVENTS_TEXT,
        *table(("event", "id", "fields", "meaning"), _events()),
        "",
    ]
    return "\n".join(lines) + "\n" + BY_HAND + page.partition(BY_HAND)[2]


def _header(name: str) -> str:
    return "-".join(part.title() if part != "ttl" else "TTL" for part in name.split("-"))


PAGES: Mapping[str, Callable[[str], str]] = {
    "cli.md": lambda _: cli(),
    "errors.md": lambda _: errors(),
    "http-api.md": http_api,
    "metrics.md": lambda _: metrics(),
    "settings.md": lambda _: settings_table(),
}
"""Each page by its name; from the page as it is."""


def main() -> None:
    for name, generate in PAGES.items():
        file = ROOT / "docs" / name
        file.write_text(generate(file.read_text() if file.exists() else ""))


if __name__ == "__main__":
    main()
