"""What operators did, and what was refused."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def upgrade() -> None:
    """Two tables, empty: a gateway brings what an older one wrote down in Redis."""
    op.create_table(
        "audit",
        *_text("id"),
        sa.Column("at", sa.BigInteger, nullable=False),
        *_text("who", "address", "action", "target", "before", "after"),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        comment="What operators did",
    )
    op.create_index("ix_audit_at_id", "audit", ["at", "id"])
    op.create_table(
        "refusals",
        sa.Column("minute", sa.BigInteger, nullable=False),
        *_text("key_id", "code", "replica"),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("minute", "key_id", "code", "replica", name="pk_refusals"),
        comment="Calls that were refused, counted by each process for a minute that began then",
    )
