"""Keys that are made while gateways run."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Two new tables, empty, and the version of what they hold."""
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("revoked", sa.BigInteger),
        sa.Column("cut", sa.BigInteger),
        sa.Column("last_used", sa.BigInteger),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        comment="Keys of callers and tokens of workers; none is ever removed",
    )
    op.create_index("ix_keys_version", "keys", ["version"])
    op.create_table(
        "secrets",
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("valid_until", sa.BigInteger),
        sa.PrimaryKeyConstraint("sha256", name="pk_secrets"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_secrets_key_id"),
        comment="Hashes of the secrets of keys",
    )
    op.create_index("ix_secrets_key_id", "secrets", ["key_id"])
    op.execute("INSERT INTO facts (name, value) VALUES ('keys_version', '0')")
