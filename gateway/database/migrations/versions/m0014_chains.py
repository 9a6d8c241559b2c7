"""Which stage of a chain, and which part of one, a row of `usage` tells of."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Columns at the end, which neither kind of database writes into the rows that are there: those are of no chain; and an index
    of the rows that are, of which there are none."""
    op.add_column("usage", sa.Column("chain", sa.Text, nullable=False, server_default=""))
    op.add_column("usage", sa.Column("stage", sa.Integer, comment="Null: it is no chain; so below"))
    op.add_column("usage", sa.Column("stage_name", sa.Text, nullable=False, server_default=""))
    op.add_column("usage", sa.Column("part", sa.Integer))
    op.create_index(
        "ix_usage_chain",
        "usage",
        ["chain"],
        sqlite_where=sa.text("chain <> ''"),
        postgresql_where=sa.text("chain <> ''"),
    )
