"""Webhooks, and what they have told."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def upgrade() -> None:
    """Two tables, empty."""
    op.create_table(
        "webhooks",
        *_texts("id", "key_id", "user_name", "url", "events", "note", "secret", "old_secret"),
        *_numbers("old_until", "created", "changed"),
        sa.Column("off_since", sa.BigInteger, comment="Since when; null: it is on"),
        *_texts("off_why"),
        *_numbers("fails"),
        sa.Column("failing_since", sa.BigInteger, comment="Null: it does not"),
        *_texts("error"),
        sa.Column("delivered", sa.BigInteger, comment="When last; null: never"),
        *_numbers("waiting", "missed"),
        sa.Column(
            "due",
            sa.BigInteger,
            comment="When a replica has something to do for it next; null: nothing is owed",
        ),
        *_numbers("not_before"),
        *_texts("claim"),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
        comment="Addresses that callers want to be told of ends at",
    )
    op.create_index("ix_webhooks_due", "webhooks", ["due"])
    op.create_index("ix_webhooks_key_id_user_name", "webhooks", ["key_id", "user_name"])
    op.create_table(
        "webhook_deliveries",
        *_texts("id", "webhook", "event_id", "event", "object_id", "user_name"),
        *_numbers("created"),
        *_texts("state"),
        *_numbers("began"),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("tries", "attempts")),
        sa.Column("due", sa.BigInteger, comment="When it is sent next; null: not any more"),
        sa.Column("ended", sa.BigInteger, comment="When it was taken, or given up; null: it is owed"),
        sa.Column("status", sa.Integer, comment="Of the last answer; null: there was none"),
        *_texts("error", "log"),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_deliveries"),
        comment="What webhooks have told, and are still to tell",
    )
    for columns in (["webhook", "due"], ["webhook", "created", "id"], ["created"], ["user_name"]):
        op.create_index(f"ix_webhook_deliveries_{'_'.join(columns)}", "webhook_deliveries", columns)
