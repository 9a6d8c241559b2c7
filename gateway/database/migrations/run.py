"""Runs the migrations by Alembic. Imported only where there is something to do: Alembic takes a third of a second."""

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection


def upgrade(connection: Connection, revision: str) -> None:
    """Bring the schema to a revision, in the transaction that is open."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def known() -> set[str]:
    """All revisions that this program has a migration to."""
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "fairlane.gateway.database:migrations")
    return config
