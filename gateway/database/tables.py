"""The tables after the newest migration.

Times are ms since 1970. JSON is stored as text, which both kinds of database keep unchanged.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
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

_TYPES: dict[Any, Any] = {str: Text, int: BigInteger, bool: Boolean}


def _texts(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _columns(row: type) -> list[Column[Any]]:
    """Return a column for each field of a row's class: one that can be None is nullable."""
    columns = []
    for name, hint in get_type_hints(row).items():
        known, *nothing = get_args(hint) or (hint,)
        columns.append(Column(name, _TYPES[known], nullable=bool(nothing)))
    return columns


def _key(table: str, names: Sequence[str]) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint(*names, name=f"pk_{table}")


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
    *_texts("kind", "settings", "note"),
    *_numbers("created"),
    *(Column(name, BigInteger) for name in ("expires", "revoked", "cut", "last_used")),
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
    *_texts("settings", "note", "who"),
    *_numbers("created", "changed"),
    comment="Endpoints that were added while gateways ran",
)
"""`settings`: those of a configuration entry, as JSON, with its headers. `who`: the actor of the last change."""


class UsageRow(NamedTuple):
    """A row of the table `usage`. Empty text: there is none."""

    task: str
    """Of a stage of a chain `<chain>.<stage>`, of a part its own id, so that each has a row."""
    ended: int
    enqueued: int
    """Of a stage: when the chain entered it."""
    granted: int | None
    """The last grant. None: it was never granted."""
    first_output: int | None
    state: str
    code: str
    key_id: str
    user_name: str
    tier: str
    queue: str
    task_type: str
    model: str
    """The requested one."""
    scheduled: str
    """Its queue."""
    worker: str
    attempts: int
    tries: int
    request: str
    trace: str
    input: int | None
    """None: not known; so the next three."""
    output: int | None
    cached: int | None
    reasoning: int | None
    estimated: bool
    cost: int | None
    """Micro-credits. None: it had no price."""
    price: str
    """The whole price (`Price.id`)."""
    route: str
    """The requested name, if more than one model can run it."""
    template: str
    template_version: str
    chain: str = ""
    """The task of the chain, if the row is a stage (numbered from 0) or a part of one."""
    stage: int | None = None
    stage_name: str = ""
    part: int | None = None

    @property
    def waited_ms(self) -> int:
        """Until its last grant, including earlier attempts; if it was never granted, until its end."""
        return max((self.granted or self.ended) - self.enqueued, 0)

    @property
    def ran_ms(self) -> int:
        """From its last grant to its end."""
        return max(self.ended - self.granted, 0) if self.granted else 0


usage = Table(
    "usage",
    metadata,
    *_columns(UsageRow),
    _key("usage", ["task"]),
    Index("ix_usage_ended_task", "ended", "task"),
    Index("ix_usage_chain", "chain", sqlite_where=text("chain <> ''"), postgresql_where=text("chain <> ''")),
    Index("ix_usage_key_id_ended_task", "key_id", "ended", "task"),
    Index("ix_usage_user_name_ended_task", "user_name", "ended", "task"),
    comment="One row per ended task",
)

MEASURES = (
    *("tasks", "completed", "failed", "cancelled"),
    *("input", "output", "cached", "reasoning", "estimated", "waited_ms", "ran_ms", "cost"),
)
"""Sums over tasks: their number, tokens, number with estimated tokens, times, and costs."""


def _sums(name: str, comment: str, *key: str, more: Sequence[Index] = ()) -> Table:
    at = key.index("key_id")
    columns: list[Column[Any]] = [*_numbers(*key[:at]), *_texts(*key[at:]), *_numbers(*MEASURES)]
    return Table(name, metadata, *columns, _key(name, key), *more, comment=comment)


usage_sums = _sums(
    "usage_sums",
    "Sums over hours and days (`span`, ms), by the ends of tasks",
    *("span", "began", "key_id", "tier", "model", "state", "code"),
)
usage_users = _sums(
    "usage_users",
    "Sums over days, by user",
    *("began", "key_id", "user_name", "tier", "model"),
    more=[Index("ix_usage_users_user_name_began", "user_name", "began")],
)
usage_routes = _sums(
    "usage_routes",
    "Sums over days, by route: only tasks that have one",
    *("began", "key_id", "tier", "route", "model"),
)


GRANTED = "granted"
"""The fund of grants; others are budgets of a `day` or a `month`."""


class LedgerRow(NamedTuple):
    """A row of the table `ledger`. Micro-credits."""

    kind: str
    """grant or task"""
    id: str
    """Of the grant or the task."""
    fund: str
    """granted, or the budget of a day or month."""
    ends: int
    """When the budget ends; 0: it is none."""
    subject: str
    """The payer: a key, `k:<id>`, or a user, `u:<user>`."""
    key_id: str
    user_name: str
    held: int
    """What was reserved: the rest was returned."""
    amount: int
    """What is added to the balance; a charge is negative."""
    number: int
    """See `Charge`."""
    price: str
    at: int
    who: str = ""
    """Of a grant, like `note`."""
    note: str = ""


ledger = Table(
    "ledger",
    metadata,
    *_columns(LedgerRow),
    _key("ledger", ["kind", "id", "fund"]),
    Index("ix_ledger_at_id_fund", "at", "id", "fund"),
    Index("ix_ledger_subject_at_id_fund", "subject", "at", "id", "fund"),
    Index("ix_ledger_subject_number", "subject", "number"),
    comment="Grants and charges of keys and users with a quota; rows are added, and never changed",
)

balances = Table(
    "balances",
    metadata,
    *_texts("subject", "fund"),
    *_numbers("ends", "amount", "granted", "grants", "number"),
    _key("balances", ["subject", "fund", "ends"]),
    Index("ix_balances_ends", "ends"),
    comment="Sums of the ledger",
)
"""`amount`: of all rows; `granted`: of the grants, whose number is `grants`; `number`: the highest of a task."""

audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    *_numbers("at"),
    *_texts("who", "address", "action", "target", "before", "after"),
    Index("ix_audit_at_id", "at", "id"),
    comment="What operators did",
)
"""`id` is the outbox entry's own. `before` and `after` are JSON objects."""

rejections = Table(
    "rejections",
    metadata,
    *_numbers("minute"),
    *_texts("key_id", "code", "replica"),
    *_numbers("count"),
    _key("rejections", ["minute", "key_id", "code", "replica"]),
    comment="Rejected calls, counted by each process for each minute",
)
"""`key_id`: empty without keys. `code`: of the error."""

archive = Table(
    "archive",
    metadata,
    Column("task", Text, primary_key=True),
    *_numbers("enqueued", "ended"),
    *_texts("key_id", "user_name", "state"),
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
    *_numbers("at"),
    comment="Erased users: records of their earlier tasks are written without their names",
)
"""`hash`: of the database's identifier and the user."""

# ---- stored responses (gateway/responses/) ----------

responses = Table(
    "responses",
    metadata,
    Column("task", Text, primary_key=True),
    *_texts("key_id", "user_name"),
    *_numbers("created", "expires"),
    Column("background", Boolean, nullable=False),
    *_texts("model"),
    Column("falls", Boolean, nullable=False),
    *_texts("previous"),
    *_numbers("size"),
    Column("ended", BigInteger, comment="Null: its log is not here yet"),
    *_texts("status"),
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
    *_numbers("part"),
    Column("events", LargeBinary, nullable=False),
    _key("response_logs", ["task", "part"]),
    comment="The event logs of responses that have ended, in parts from 0",
)
"""`events`: as `gateway/responses/log_archive.py` packs them."""


# ---- webhooks (gateway/webhooks/) ----------


class WebhookRow(NamedTuple):
    """A row of the table `webhooks`; the defaults are those of a new webhook."""

    id: str
    key_id: str
    user_name: str
    """A user of the key, or EVERY_USER."""
    url: str
    events: str
    """Types, separated by blanks."""
    note: str
    secret: str
    """Signs requests."""
    created: int
    changed: int
    old_secret: str = ""
    """Also signs them until `old_until`."""
    old_until: int = 0
    off_since: int | None = None
    """None: it is on."""
    off_why: str = ""
    fails: int = 0
    """Failed attempts since the last success."""
    failing_since: int | None = None
    error: str = ""
    """Of the last failed attempt."""
    delivered: int | None = None
    """The last success."""
    not_before: int = 0
    """When a failing receiver is tried next."""
    claimed: int = 0
    """Until when one replica sends its deliveries; 0: none does."""


webhooks = Table(
    "webhooks",
    metadata,
    *_columns(WebhookRow),
    _key("webhooks", ["id"]),
    Index("ix_webhooks_key_id_user_name", "key_id", "user_name"),
    comment="URLs that are notified when something of their owners ends",
)


class DeliveryRow(NamedTuple):
    """A row of the table `webhook_deliveries`; the defaults are those of a new delivery."""

    id: str
    """The webhook-id of all its requests."""
    webhook: str
    event_id: str
    event: str
    object_id: str
    user_name: str
    created: int
    """When the event happened."""
    began: int
    """The same, or when an owner sent it again."""
    due: int | None
    """When it is sent next. None: not any more."""
    state: str = "waiting"
    """waiting, delivered or failed"""
    attempts: int = 0
    """Since `began`."""
    ended: int | None = None
    """When it was delivered, or given up."""
    status: int | None = None
    """Of the last answer."""
    error: str = ""


_WAITS = text("due IS NOT NULL")
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    *_columns(DeliveryRow),
    _key("webhook_deliveries", ["id"]),
    # of deliveries that wait: it is read each second, and most rows are of those that were delivered
    Index(
        "ix_webhook_deliveries_webhook_due", "webhook", "due", sqlite_where=_WAITS, postgresql_where=_WAITS
    ),
    Index("ix_webhook_deliveries_webhook_created_id", "webhook", "created", "id"),
    Index("ix_webhook_deliveries_began", "began"),
    Index("ix_webhook_deliveries_user_name", "user_name"),
    comment="Events that webhooks have sent, or will send",
)

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    *_texts("key_id", "user_name", "name", "purpose"),
    *_numbers("bytes", "created"),
    Column("expires", BigInteger, comment="Null: it is kept until it is deleted"),
    *_texts("state"),
    Column("due", BigInteger, comment="When the sweep handles it; null: never"),
    Index("ix_files_key_id_user_name_id", "key_id", "user_name", "id"),
    Index("ix_files_due", "due"),
    comment="Files of clients and of batches; the storage has their bytes, by their ids",
)
"""See `files/rows.py`."""

# ---- batches (gateway/batches/) ----------


class BatchRow(NamedTuple):
    """A row of the table `batches`; the defaults are those of a new batch. Times: 0: not yet."""

    id: str
    """Ids sort by time."""
    key_id: str
    user_name: str
    tier: str
    endpoint: str
    input_file: str
    completion_window: str
    created: int
    expires: int
    metadata: str = ""
    """JSON; '': none."""
    output_ttl_s: int = 0
    """How long its files are kept; 0: until they are deleted."""
    model: str = ""
    """Of its first line."""
    output_file: str = ""
    """'': none."""
    error_file: str = ""
    status: str = "validating"
    outcome: str = ""
    """The status in which it will end; '' while lines run."""
    errors: str = ""
    """JSON; '': none."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    began: int = 0
    finalizing: int = 0
    cancelling: int = 0
    ended: int = 0
    leader: str = ""
    """The replica that runs it; '': none."""
    lease: int = 0
    """Until when the leader holds it."""
    epoch: int = 0
    """The number of its leaders so far. Each write names it, so a replaced leader changes nothing."""
    waiting: int = 0
    """Lines whose tasks wait, at the last report of its leader."""
    running: int = 0
    input_tokens: int = 0
    """Of all answers, like the next three."""
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    blocked_on: str = ""
    """BlockedOn at the last report of its leader, as JSON; '': no line is blocked."""


batches = Table(
    "batches",
    metadata,
    *_columns(BatchRow),
    _key("batches", ["id"]),
    Index("ix_batches_user_name_key_id_id", "user_name", "key_id", "id"),
    Index("ix_batches_status_id", "status", "id"),
    Index("ix_batches_ended", "ended"),
    comment="Batches",
)

batch_results = Table(
    "batch_results",
    metadata,
    Column("batch", Text, ForeignKey("batches.id", ondelete="CASCADE"), nullable=False),
    *_numbers("line"),
    Column("failed", Boolean, nullable=False),
    Column("record", LargeBinary, nullable=False),
    _key("batch_results", ["batch", "line"]),
    comment="Results of the lines of batches, until they are in files",
)
"""Content. `record`: its line in the output or error file."""
