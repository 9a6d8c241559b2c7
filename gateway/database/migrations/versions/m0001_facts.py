"""The first table: what holds for the database as a whole."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """From an empty database."""
    facts = op.create_table(
        "facts",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_facts"),
        comment="What holds for the database as a whole",
    )
    op.bulk_insert(facts, [{"name": "identifier", "value": secrets.token_hex(16)}])
