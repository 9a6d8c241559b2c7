"""How batches stand and what they used; how much all files are together."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

_NUMBERS = (
    "waiting",
    "running",
    "still",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
)


def upgrade() -> None:
    """Columns, which older gateways leave as they are; and a table of one row, which is put right from time to time."""
    for name in _NUMBERS:
        op.add_column("batches", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("batches", sa.Column("whys", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "file_totals",
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("id", "files", "bytes", "counted")),
        sa.PrimaryKeyConstraint("id", name="pk_file_totals"),
        comment="How many files there are, and their bytes: one row",
    )
    op.execute(
        "INSERT INTO file_totals (id, files, bytes, counted) SELECT 1, count(*), coalesce(sum(bytes), 0), 0 FROM files"
    )
