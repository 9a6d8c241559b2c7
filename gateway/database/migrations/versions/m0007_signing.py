"""What the secrets of keys sign with."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """One new column, empty: no key signed before."""
    op.add_column(
        "secrets", sa.Column("signing_key", sa.Text, comment="What it signs with, hex; null: it may not")
    )
