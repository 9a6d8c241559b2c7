"""Responses that are kept, and their logs."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Two tables, empty."""
    op.create_table(
        "responses",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("task", "key_id", "user_name")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created", "expires")),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("falls", sa.Boolean, nullable=False),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger, comment="Null: its log is not here yet"),
        sa.Column("status", sa.Text, nullable=False),
        *(sa.Column(name, sa.LargeBinary, nullable=False) for name in ("echo", "input")),
        sa.Column("output", sa.LargeBinary, comment="Null: its log is not here yet"),
        sa.PrimaryKeyConstraint("task", name="pk_responses"),
        comment="Responses that are kept, in the background or not: what was asked, and how it ended",
    )
    op.create_index("ix_responses_expires", "responses", ["expires"])
    op.create_index("ix_responses_created_task", "responses", ["created", "task"])
    op.create_index(
        "ix_responses_user_name_key_id_created_size", "responses", ["user_name", "key_id", "created", "size"]
    )
    op.create_table(
        "response_logs",
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("events", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["task"], ["responses.task"], name="fk_response_logs_task_responses", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task", "part", name="pk_response_logs"),
        comment="The event logs of responses that have ended, in parts from 0",
    )
