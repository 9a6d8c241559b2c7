"""Alembic runs this. The connection is ours (`schema.py`), and so is the transaction."""

from alembic import context

from fairlane.gateway.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
