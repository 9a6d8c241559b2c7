"""`fairlane db`: its commands; `database_cli` carries them out."""

import typer

from fairlane.gateway.process.asking import Config

app = typer.Typer(no_args_is_help=True, help="See to the SQL database.")


@app.command()
def status(config: Config = None) -> None:
    """Tell which database it is and whether its schema is this program's. Changes nothing. Exit code 1: it is to be upgraded."""
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    database_cli.status(config)


@app.command()
def upgrade(config: Config = None) -> None:
    """Bring the schema to this program's. A gateway does so itself when it starts; here it can be done before."""
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    database_cli.upgrade(config)


@app.command()
def adopt(config: Config = None) -> None:
    """Let the replicas of the configured Redis share this database from now on: where theirs is gone for good."""
    from fairlane.gateway.process import database_cli  # noqa: PLC0415 (SQLAlchemy)

    database_cli.adopt(config)
