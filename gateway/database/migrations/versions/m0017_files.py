"""Files of callers, and of batches."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """A table, empty."""
    op.create_table(
        "files",
        sa.Column("id", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("key_id", "user_name", "name", "purpose")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("bytes", "created")),
        sa.Column("expires", sa.BigInteger, comment="Null: it is kept until it is deleted"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("due", sa.BigInteger, comment="Null: nothing is to be done with it"),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
        comment="Files of callers, and of batches; their bytes are in the storage, by their ids",
    )
    op.create_index("ix_files_key_id_user_name_id", "files", ["key_id", "user_name", "id"])
    op.create_index("ix_files_due", "files", ["due"])
