"""What keys and users were granted and have paid, and what that adds up to."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def upgrade() -> None:
    """Two tables, empty: nobody paid before."""
    op.create_table(
        "ledger",
        *_text("kind", "id", "fund"),
        *_numbers("ends"),
        *_text("subject", "key_id", "user_name"),
        *_numbers("held", "amount", "number"),
        *_text("price"),
        *_numbers("at"),
        *_text("who", "note"),
        sa.PrimaryKeyConstraint("kind", "id", "fund", name="pk_ledger"),
        comment="What was granted, and what tasks have cost those who have a quota; rows are added, and never changed",
    )
    for columns in (["at", "id", "fund"], ["subject", "at", "id", "fund"], ["subject", "number"]):
        op.create_index(f"ix_ledger_{'_'.join(columns)}", "ledger", columns)
    op.create_table(
        "balances",
        *_text("subject", "fund"),
        *_numbers("ends", "amount", "granted", "grants", "number"),
        sa.PrimaryKeyConstraint("subject", "fund", "ends", name="pk_balances"),
        comment="The ledger added up",
    )
    op.create_index("ix_balances_ends", "balances", ["ends"])
