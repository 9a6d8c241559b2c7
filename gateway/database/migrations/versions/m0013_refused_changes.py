"""Which side of a change of settings refused calls were on."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """A table, empty."""
    op.create_table(
        "refused_changes",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("change_id", "side", "code")),
        sa.Column("minute", sa.BigInteger, nullable=False),
        sa.Column("replica", sa.Text, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("change_id", "side", "code", "minute", "replica", name="pk_refused_changes"),
        comment="The same of those that a change of settings concerned, by its side",
    )
    op.create_index("ix_refused_changes_minute", "refused_changes", ["minute"])
