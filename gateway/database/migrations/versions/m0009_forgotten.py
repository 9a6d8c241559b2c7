"""Users who were forgotten."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """One table, empty."""
    op.create_table(
        "forgotten",
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_forgotten"),
        comment="Users who were forgotten: what their tasks of before leave is written without their names",
    )
