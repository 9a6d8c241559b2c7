"""What tasks were asked by: their routes and templates."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0009"

MEASURES = (
    *("tasks", "completed", "failed", "cancelled"),
    *("input", "output", "cached", "reasoning", "estimated", "waited_ms", "ran_ms", "cost"),
)


def upgrade() -> None:
    """Columns at the end, which neither kind of database writes into the rows that are there, and a table, empty: what was
    recorded before has no route."""
    for name in ("route", "template", "template_version"):
        op.add_column("usage", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.create_table(
        "usage_routes",
        sa.Column("began", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("key_id", "tier", "route", "model")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in MEASURES),
        sa.PrimaryKeyConstraint("began", "key_id", "tier", "route", "model", name="pk_usage_routes"),
        comment="The same added up over days, by route: of tasks that have one",
    )
