"""Batches, and what came of their lines."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_TEXTS = ("key_id", "user_name", "tier", "endpoint", "model", "input_file", "output_file", "error_file")
_MORE_TEXTS = ("completion_window", "metadata", "status", "outcome", "errors")
_NUMBERS = (
    "total",
    "completed",
    "failed",
    "created",
    "expires",
    "began",
    "finalizing",
    "cancelling",
    "ended",
)


def upgrade() -> None:
    """Two tables, empty."""
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS),
        sa.Column("output_ttl_s", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _MORE_TEXTS),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _NUMBERS),
        sa.Column("leader", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("lease", "epoch", "line", "offset")),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
        comment="Batches, and who works on those that have not ended",
    )
    op.create_index("ix_batches_user_name_key_id_id", "batches", ["user_name", "key_id", "id"])
    op.create_index("ix_batches_status_id", "batches", ["status", "id"])
    op.create_index("ix_batches_ended", "batches", ["ended"])
    op.create_table(
        "batch_results",
        sa.Column("batch", sa.Text, nullable=False),
        sa.Column("line", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.Boolean, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("batch", "line", name="pk_batch_results"),
        comment="What came of the lines of batches, until it stands in their files",
    )
