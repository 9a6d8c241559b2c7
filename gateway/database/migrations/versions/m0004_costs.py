"""What tasks cost."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Columns at the end, which neither kind of database writes into the rows that are there: those had no price."""
    op.add_column("usage", sa.Column("cost", sa.BigInteger, comment="Micro-credits. Null: it had no price"))
    op.add_column("usage", sa.Column("price", sa.Text, nullable=False, server_default=""))
    for table in ("usage_sums", "usage_users"):
        op.add_column(table, sa.Column("cost", sa.BigInteger, nullable=False, server_default="0"))
