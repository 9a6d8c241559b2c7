"""Endpoints that are added while gateways run."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """A table, empty, and the version of what it holds."""
    op.create_table(
        "endpoints",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_endpoints"),
        comment="Endpoints that were added while gateways ran",
    )
    op.execute("INSERT INTO facts (name, value) VALUES ('endpoints_version', '0 0')")
