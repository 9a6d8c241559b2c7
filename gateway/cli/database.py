"""`fairlane db adopt`, and the keys in the database for `fairlane config check`."""

import asyncio
import os
from pathlib import Path

import typer
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.accounts.no_auth import KeyPresence
from fairlane.gateway.cli.client import stop
from fairlane.gateway.database.database import opened
from fairlane.gateway.database.errors import DatabaseError
from fairlane.gateway.database.tables import HEAD
from fairlane.gateway.settings import Settings, hide_password, load_settings
from fairlane.queues.keys import Keys, pool_prefix


def adopt(config: Path | None) -> None:
    """Let the replicas of the configured Redis use this database, if theirs is lost permanently."""
    settings, _ = load_settings(config, {}, os.environ)
    url = settings.redis_url
    if url is None:
        stop("there is no redis_url: a private Redis uses the database that exists")

    async def register() -> None:
        async with opened(settings.database_url, settings.data_dir) as database:
            await database.start()
            client = Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
            try:
                await client.set(Keys(pool_prefix())("database"), database.identifier)
            except RedisError as error:
                stop(f"Redis at {hide_password(url)}: {error}")
            finally:
                await client.aclose()
            typer.echo(f"{hide_password(url)} belongs to {database.address}")

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
