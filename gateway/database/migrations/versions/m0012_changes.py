"""On which side of a change of settings tasks were."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

MEASURES = (
    *("tasks", "completed", "failed", "cancelled"),
    *("input", "output", "cached", "reasoning", "estimated", "waited_ms", "ran_ms", "cost"),
)


def upgrade() -> None:
    """Columns at the end, which neither kind of database writes into the rows that are there: no change concerned those; an index
    of the rows that one concerned, of which there are none; and a table, empty."""
    op.add_column("usage", sa.Column("change_id", sa.Text, nullable=False, server_default=""))
    op.add_column("usage", sa.Column("side", sa.Text, nullable=False, server_default=""))
    op.add_column("usage", sa.Column("moves", sa.Integer, comment="Null: no change concerned it"))
    op.create_index(
        "ix_usage_change_id_side_ended",
        "usage",
        ["change_id", "side", "ended"],
        sqlite_where=sa.text("change_id <> ''"),
        postgresql_where=sa.text("change_id <> ''"),
    )
    op.create_table(
        "usage_changes",
        sa.Column("began", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("change_id", "side", "state", "code")),
        sa.Column("moved", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in MEASURES),
        sa.PrimaryKeyConstraint(
            "change_id", "side", "state", "code", "moved", "began", name="pk_usage_changes"
        ),
        comment="The same of tasks that a change of settings concerned, added up over days",
    )
    op.create_index("ix_usage_changes_began", "usage_changes", ["began"])
