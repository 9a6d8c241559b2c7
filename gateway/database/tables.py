"""The tables after the newest migration.

Times are ms since 1970. JSON is stored as text, which both kinds of database keep unchanged.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

HEAD = "0001"
"""The revision of the newest migration."""
MAX_OF_A_VALUE = 64 << 20
"""Bytes: larger values fit neither the drivers nor the memory of readers. Writers check it."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

facts = Table(
    "facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    comment="Facts about the database as a whole",
)
"""`identifier`: of this database; Redis has it, too. `keys_version`: incremented with every change of a key. `endpoints_version`:
with every change of an endpoint; behind a blank, its time."""

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("cut", BigInteger),
    Column("last_used", BigInteger),
    Column("version", BigInteger, nullable=False, index=True),
    comment="Keys of callers and tokens of workers; none is ever removed",
)
"""`kind`: caller or worker. `settings`: those of a configuration entry except id and hash, as JSON. `cut`: when its requests
under way were ended. `version`: the `keys_version` of its last change, except of `last_used`."""

secrets = Table(
    "secrets",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("key_id", Text, ForeignKey("keys.id"), nullable=False, index=True),
    Column("created", BigInteger, nullable=False),
    Column("valid_until", BigInteger),
    Column("signing_key", Text, comment="For signed tokens, hex; null: it cannot sign"),
    comment="Hashes of the secrets of keys",
)
"""A rotated key has its former secret, too, for some time."""


endpoints = Table(
    "endpoints",
    metadata,
    Column("name", Text, primary_key=True),
    Column("settings", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    comment="Endpoints that were added while gateways ran",
)
"""`settings`: those of a configuration entry, as JSON, with its headers. `who`: the actor of the last change."""


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


usage = Table(
    "usage",
    metadata,
    Column("task", Text, primary_key=True),
    _number("ended"),
    _number("enqueued"),
    Column("granted", BigInteger, comment="Null: it was never granted"),
    Column("first_output", BigInteger),
    _text("state"),
    _text("code"),
    _text("key_id"),
    _text("user_name"),
    _text("tier"),
    _text("queue"),
    _text("task_type"),
    _text("model"),
    _text("scheduled"),
    _text("worker"),
    Column("attempts", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
    _text("request"),
    _text("trace"),
    Column("input", BigInteger, comment="Null: not known; so below"),
    Column("output", BigInteger),
    Column("cached", BigInteger),
    Column("reasoning", BigInteger),
    Column("estimated", Boolean, nullable=False),
    Column("cost", BigInteger, comment="Micro-credits. Null: it had no price"),
    _text("price"),
    _text("route"),
    _text("template"),
    _text("template_version"),
    Column("chain", Text, nullable=False, server_default=""),
    Column("stage", Integer, comment="Null: it is no chain; so below"),
    Column("stage_name", Text, nullable=False, server_default=""),
    Column("part", Integer),
    Index("ix_usage_ended_task", "ended", "task"),
    Index("ix_usage_chain", "chain", sqlite_where=text("chain <> ''"), postgresql_where=text("chain <> ''")),
    Index("ix_usage_key_id_ended_task", "key_id", "ended", "task"),
    Index("ix_usage_user_name_ended_task", "user_name", "ended", "task"),
    comment="One row per ended task",
)
"""Empty text: there is none. `model`: the requested one; `scheduled`: its queue; `granted`: the last grant. `price`: the whole
price (`Price.id`). `route`: the requested name, if more than one model can run it. `chain`: the task of the chain, if the row is
a stage (numbered from 0) or a part of one: then `task` is `<chain>.<stage>` or `<chain>.<stage>.<part>`, and `enqueued` is of
the stage."""


MEASURES = (
    *("tasks", "completed", "failed", "cancelled"),
    *("input", "output", "cached", "reasoning", "estimated", "waited_ms", "ran_ms", "cost"),
)
"""Sums over tasks: their number, tokens, number with estimated tokens, times, and costs."""


def _measures() -> list[Column[int]]:
    return [_number(name) for name in MEASURES]


usage_sums = Table(
    "usage_sums",
    metadata,
    _number("span"),
    _number("began"),
    _text("key_id"),
    _text("tier"),
    _text("model"),
    _text("state"),
    _text("code"),
    *_measures(),
    PrimaryKeyConstraint("span", "began", "key_id", "tier", "model", "state", "code", name="pk_usage_sums"),
    comment="Sums over hours and days (`span`, ms), by the ends of tasks",
)

usage_users = Table(
    "usage_users",
    metadata,
    _number("began"),
    _text("key_id"),
    _text("user_name"),
    _text("tier"),
    _text("model"),
    *_measures(),
    PrimaryKeyConstraint("began", "key_id", "user_name", "tier", "model", name="pk_usage_users"),
    Index("ix_usage_users_user_name_began", "user_name", "began"),
    comment="Sums over days, by user",
)

usage_routes = Table(
    "usage_routes",
    metadata,
    _number("began"),
    _text("key_id"),
    _text("tier"),
    _text("route"),
    _text("model"),
    *_measures(),
    PrimaryKeyConstraint("began", "key_id", "tier", "route", "model", name="pk_usage_routes"),
    comment="Sums over days, by route: only tasks that have one",
)

ledger = Table(
    "ledger",
    metadata,
    _text("kind"),
    _text("id"),
    _text("fund"),
    _number("ends"),
    _text("subject"),
    _text("key_id"),
    _text("user_name"),
    _number("held"),
    _number("amount"),
    _number("number"),
    _text("price"),
    _number("at"),
    _text("who"),
    _text("note"),
    PrimaryKeyConstraint("kind", "id", "fund", name="pk_ledger"),
    Index("ix_ledger_at_id_fund", "at", "id", "fund"),
    Index("ix_ledger_subject_at_id_fund", "subject", "at", "id", "fund"),
    Index("ix_ledger_subject_number", "subject", "number"),
    comment="Grants and charges of keys and users with a quota; rows are added, and never changed",
)
"""`kind`: grant or task; `id` is its id. `subject`: the payer: a key, `k:<id>`, or a user, `u:<user>`. `fund`: granted, or the
budget of a day or month, which `ends` then (else 0). Micro-credits: `amount` is added to the balance, so a charge is negative;
the rest of `held` was returned. `number`: see `Charge`. `who`, `note`: of a grant."""

balances = Table(
    "balances",
    metadata,
    _text("subject"),
    _text("fund"),
    _number("ends"),
    _number("amount"),
    _number("granted"),
    _number("grants"),
    _number("number"),
    PrimaryKeyConstraint("subject", "fund", "ends", name="pk_balances"),
    Index("ix_balances_ends", "ends"),
    comment="Sums of the ledger",
)
"""`amount`: of all rows; `granted`: of the grants, whose number is `grants`; `number`: the highest of a task."""

audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    _number("at"),
    _text("who"),
    _text("address"),
    _text("action"),
    _text("target"),
    _text("before"),
    _text("after"),
    Index("ix_audit_at_id", "at", "id"),
    comment="What operators did",
)
"""`id` is the outbox entry's own. `before` and `after` are JSON objects."""

rejections = Table(
    "rejections",
    metadata,
    _number("minute"),
    _text("key_id"),
    _text("code"),
    _text("replica"),
    _number("count"),
    PrimaryKeyConstraint("minute", "key_id", "code", "replica", name="pk_rejections"),
    comment="Rejected calls, counted by each process for each minute",
)
"""`key_id`: empty without keys. `code`: of the error."""

archive = Table(
    "archive",
    metadata,
    Column("task", Text, primary_key=True),
    _number("enqueued"),
    _number("ended"),
    _text("key_id"),
    _text("user_name"),
    _text("state"),
    Column("answer", LargeBinary, nullable=False),
    Column("request", LargeBinary, comment="Null: it is not stored"),
    Index("ix_archive_ended", "ended"),
    Index("ix_archive_user_name", "user_name"),
    comment="Results of async tasks, for later polls",
)
"""Content: empty unless the setting `archive` enables it. `answer`: of a poll, JSON."""

erased_users = Table(
    "erased_users",
    metadata,
    Column("hash", Text, primary_key=True),
    _number("at"),
    comment="Erased users: records of their earlier tasks are written without their names",
)
"""`hash`: of the database's identifier and the user."""

# ---- stored responses (gateway/responses/) ----------

responses = Table(
    "responses",
    metadata,
    Column("task", Text, primary_key=True),
    _text("key_id"),
    _text("user_name"),
    _number("created"),
    _number("expires"),
    Column("background", Boolean, nullable=False),
    _text("model"),
    Column("falls", Boolean, nullable=False),
    _text("previous"),
    _number("size"),
    Column("ended", BigInteger, comment="Null: its log is not here yet"),
    _text("status"),
    Column("echo", LargeBinary, nullable=False),
    Column("input", LargeBinary, nullable=False),
    Column("output", LargeBinary, comment="Null: its log is not here yet"),
    Index("ix_responses_expires", "expires"),
    Index("ix_responses_created_task", "created", "task"),
    Index("ix_responses_user_name_key_id_created_size", "user_name", "key_id", "created", "size"),
    comment="Stored responses: request and result",
)
"""Content. `task`: its id without `resp_`; `previous`: the task of the previous response, empty: none. `model`: the submitted
one; `falls`: another one may have run. `size`: of all content, bytes. `status`: as in the API, empty until it has ended. `echo`:
the echoed fields of the request, JSON; `input` and `output`: items, JSON arrays."""

response_logs = Table(
    "response_logs",
    metadata,
    Column("task", Text, ForeignKey("responses.task", ondelete="CASCADE"), nullable=False),
    Column("part", Integer, nullable=False),
    Column("events", LargeBinary, nullable=False),
    PrimaryKeyConstraint("task", "part", name="pk_response_logs"),
    comment="The event logs of responses that have ended, in parts from 0",
)
"""`events`: as `gateway/responses/logs.py` packs them."""


# ---- webhooks (gateway/webhooks/) ----------

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    _text("key_id"),
    _text("user_name"),
    _text("url"),
    _text("events"),
    _text("note"),
    _text("secret"),
    _text("old_secret"),
    _number("old_until"),
    _number("created"),
    _number("changed"),
    Column("off_since", BigInteger, comment="Since when; null: it is on"),
    _text("off_why"),
    _number("fails"),
    Column("failing_since", BigInteger, comment="Null: it does not"),
    _text("error"),
    Column("delivered", BigInteger, comment="When last; null: never"),
    Column("due", BigInteger, comment="When a replica has something to send; null: nothing waits"),
    _number("not_before"),
    _text("claim"),
    Index("ix_webhooks_due", "due"),
    Index("ix_webhooks_key_id_user_name", "key_id", "user_name"),
    comment="URLs that are notified when something of their owners ends",
)
"""`user_name`: a user of the key, or EVERY_USER. `events`: types, separated by blanks. `secret` signs requests; `old_secret` also
signs them until `old_until`. `fails`: failed attempts since the last success; `error`: of the last one. `not_before`: when a
failing receiver is tried next. `claim`: the token of the replica that is sending; then `due` is when its claim ends."""

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Text, primary_key=True),
    _text("webhook"),
    _text("event_id"),
    _text("event"),
    _text("object_id"),
    _text("user_name"),
    _number("created"),
    _text("state"),
    _number("began"),
    Column("attempts", Integer, nullable=False),
    Column("due", BigInteger, comment="When it is sent next; null: not any more"),
    Column("ended", BigInteger, comment="When it was delivered, or given up; null: it waits"),
    Column("status", Integer, comment="Of the last answer; null: there was none"),
    _text("error"),
    Index("ix_webhook_deliveries_webhook_due", "webhook", "due"),
    Index("ix_webhook_deliveries_webhook_created_id", "webhook", "created", "id"),
    Index("ix_webhook_deliveries_created", "created"),
    Index("ix_webhook_deliveries_user_name", "user_name"),
    comment="Events that webhooks have sent, or will send",
)
"""`id`: the webhook-id of all its requests. `state`: waiting, delivered or failed. `created`: when the event happened. `began`:
the same, or when an owner sent it again. `attempts`: since `began`."""

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    *(_text(name) for name in ("key_id", "user_name", "name", "purpose")),
    *(_number(name) for name in ("bytes", "created")),
    Column("expires", BigInteger, comment="Null: it is kept until it is deleted"),
    _text("state"),
    Column("due", BigInteger, comment="When the sweep handles it; null: never"),
    Index("ix_files_key_id_user_name_id", "key_id", "user_name", "id"),
    Index("ix_files_due", "due"),
    comment="Files of clients and of batches; the storage has their bytes, by their ids",
)
"""See `files/rows.py`."""

# ---- batches (gateway/batches/) ----------

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    *(_text(name) for name in ("key_id", "user_name", "tier", "endpoint", "model")),
    *(_text(name) for name in ("input_file", "output_file", "error_file")),
    _number("output_ttl_s"),
    *(_text(name) for name in ("completion_window", "metadata", "status", "outcome", "errors")),
    *(_number(name) for name in ("total", "completed", "failed")),
    *(_number(name) for name in ("created", "expires", "began", "finalizing", "cancelling", "ended")),
    _text("leader"),
    *(_number(name) for name in ("lease", "epoch", "line", "offset")),
    *(Column(name, BigInteger, nullable=False, server_default="0") for name in ("waiting", "running")),
    *(
        Column(f"{name}_tokens", BigInteger, nullable=False, server_default="0")
        for name in ("input", "cached", "output", "reasoning")
    ),
    Column("blocked_on", Text, nullable=False, server_default=""),
    Index("ix_batches_user_name_key_id_id", "user_name", "key_id", "id"),
    Index("ix_batches_status_id", "status", "id"),
    Index("ix_batches_ended", "ended"),
    comment="Batches",
)
"""See `gateway/batches/models.py`: `user_name` and `completion_window` are `user` and `window` there. Ids sort by time."""

batch_results = Table(
    "batch_results",
    metadata,
    _text("batch"),
    _number("line"),
    Column("failed", Boolean, nullable=False),
    Column("record", LargeBinary, nullable=False),
    PrimaryKeyConstraint("batch", "line", name="pk_batch_results"),
    comment="Results of the lines of batches, until they are in files",
)
"""Content. `record`: its line in the output or error file."""
