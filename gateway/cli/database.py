"""`fairlane db adopt`, and the keys in the database for `fairlane config check`."""

import asyncio
import os
from pathlib import Path

import typer
from redis.exceptions import RedisError

from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.accounts.no_auth import KeyPresence
from fairlane.gateway.cli.client import stop
from fairlane.gateway.database.database import Database, opened
from fairlane.gateway.database.errors import DatabaseError
from fairlane.gateway.database.tables import HEAD
from fairlane.gateway.settings import Settings, load_settings
from fairlane.queues.keys import Keys, pool_prefix
from fairlane.queues.store.address import Address, parse_address
from fairlane.queues.store.wire import disconnect


def adopt(config: Path | None) -> None:
    """Let the replicas of the configured Redis use this database, if theirs is lost permanently."""
    settings, _ = load_settings(config, {}, os.environ)
    if settings.redis_url is None:
        stop("there is no redis_url: a private Redis uses the database that exists")

    async def register() -> None:
        async with opened(settings.database_url, settings.data_dir) as database:
            await database.start()
            for number, url in enumerate(settings.redis_urls):
                await take(parse_address(url, pool_prefix(number)), Keys(pool_prefix(number)), database)

    async def take(address: Address, keys: Keys, database: Database) -> None:
        try:
            connection = await address.connect(5000)
            try:
                await connection.send_command("SET", keys("database"), database.identifier)
                await connection.read_response(timeout=5)
            finally:
                await disconnect(connection)
        except (OSError, RedisError) as error:
            stop(f"Redis at {address}: {error}")
        finally:
            await address.close()
        typer.echo(f"Redis at {address} belongs to {database.address}")

    try:
        asyncio.run(register())
    except DatabaseError as error:
        stop(str(error))


def key_presence(settings: Settings) -> tuple[KeyPresence, list[str]]:
    """Return the keys in the database, and a warning if that is unknown. Changes nothing, and creates no file."""

    async def look() -> tuple[KeyPresence, list[str]]:
        async with opened(settings.database_url, settings.data_dir) as database:
            revision = await database.revision()
            if revision == HEAD:
                return await KeyStore(database).presence(), []
            if revision is None:
                return KeyPresence(), []
            return KeyPresence(), [f"{database.address} is not upgraded yet: its keys are unknown"]

    try:
        return asyncio.run(look())
    except DatabaseError as error:
        return KeyPresence(), [f"the keys in the database are unknown: {error}"]
