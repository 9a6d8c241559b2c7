"""How async tasks ended, for those who poll them later."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """One table, empty."""
    op.create_table(
        "archive",
        sa.Column("task", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("enqueued", "ended")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("key_id", "user_name", "state")),
        sa.Column("answer", sa.LargeBinary, nullable=False),
        sa.Column("request", sa.LargeBinary, comment="Null: it is not kept"),
        sa.PrimaryKeyConstraint("task", name="pk_archive"),
        comment="How async tasks ended, for those who poll them later",
    )
    op.create_index("ix_archive_ended", "archive", ["ended"])
    op.create_index("ix_archive_user_name", "archive", ["user_name"])
