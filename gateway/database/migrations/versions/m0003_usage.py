"""Usage records, and what they add up to."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

MEASURES = (
    *("tasks", "completed", "failed", "cancelled"),
    *("input", "output", "cached", "reasoning", "estimated", "waited_ms", "ran_ms"),
)


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def upgrade() -> None:
    """Three tables, empty: nothing was recorded before."""
    op.create_table(
        "usage",
        *_text("task"),
        *_numbers("ended", "enqueued"),
        sa.Column("granted", sa.BigInteger, comment="Null: it was never granted"),
        sa.Column("first_output", sa.BigInteger),
        *_text(
            "state",
            "code",
            "key_id",
            "user_name",
            "tier",
            "queue",
            "task_type",
            "model",
            "scheduled",
            "worker",
        ),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        *_text("request", "trace"),
        sa.Column("input", sa.BigInteger, comment="Null: not known; so below"),
        *(sa.Column(name, sa.BigInteger) for name in ("output", "cached", "reasoning")),
        sa.Column("estimated", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("task", name="pk_usage"),
        comment="One row per ended task",
    )
    for columns in (["ended", "task"], ["key_id", "ended", "task"], ["user_name", "ended", "task"]):
        op.create_index(f"ix_usage_{'_'.join(columns)}", "usage", columns)
    op.create_table(
        "usage_sums",
        *_numbers("span", "began"),
        *_text("key_id", "tier", "model", "state", "code"),
        *_numbers(*MEASURES),
        sa.PrimaryKeyConstraint(
            "span", "began", "key_id", "tier", "model", "state", "code", name="pk_usage_sums"
        ),
        comment="The same added up over spans of an hour and of a day (ms) that began then, by the time at which tasks ended",
    )
    op.create_table(
        "usage_users",
        *_numbers("began"),
        *_text("key_id", "user_name", "tier", "model"),
        *_numbers(*MEASURES),
        sa.PrimaryKeyConstraint("began", "key_id", "user_name", "tier", "model", name="pk_usage_users"),
        comment="The same added up over days, by user",
    )
    op.create_index("ix_usage_users_user_name_began", "usage_users", ["user_name", "began"])
