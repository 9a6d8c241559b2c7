"""The first schema: every table of `tables.py`, and the rows that a new database has."""

import secrets

from alembic import op

from fairlane.gateway.database.tables import facts, metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables as they are defined now.

    Nothing has been released, so a change of a definition needs no migration yet. The first release writes the tables
    out here; from then on each change is a migration of its own.
    """
    connection = op.get_bind()
    metadata.create_all(connection, checkfirst=False)
    names = {"identifier": secrets.token_hex(16), "keys_version": "0", "endpoints_version": "0 0"}
    connection.execute(facts.insert(), [{"name": name, "value": value} for name, value in names.items()])
