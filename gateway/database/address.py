"""The address of the database, from the setting `database_url`. Pure."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

FILE = "fairlane.db"
"""In the data directory, without `database_url`."""
PARAMETERS = ("host", "sslmode", "application_name")
"""Query parameters of a PostgreSQL URL."""
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_POSTGRES = ("postgresql", "postgres", "postgresql+asyncpg")
_SQLITE = ("sqlite", "sqlite+aiosqlite")


@dataclass(frozen=True, slots=True)
class File:
    """A database of SQLite."""

    path: Path

    def __str__(self) -> str:
        return f"SQLite at {self.path}"


@dataclass(frozen=True, slots=True)
class Server:
    """A database of PostgreSQL."""

    url: URL
    """With the directory of its socket, if it has one, as the parameter `host`."""
    sslmode: str | None
    application_name: str

    def __str__(self) -> str:
        host = self.url.query.get("host") or self.url.host
        return f"PostgreSQL at {host}:{self.url.port or 5432}, {self.url.database}"


Address = File | Server


def parse_address(database_url: str | None, data_dir: Path) -> Address:
    """Return the address in these settings. Raises ValueError with a sentence, without the URL: it may have a password."""
    if database_url is None:
        return File((data_dir / FILE).absolute())
    try:
        url = make_url(database_url)
    except (ArgumentError, ValueError):
        raise ValueError("is not a valid URL") from None
    path = url.database or ""
    if url.drivername in _SQLITE:
        # three slashes: relative to here; four: from the root
        if not path or "?" in database_url or url != URL.create(url.drivername, database=path):
            raise ValueError(
                "must name a file, as sqlite:////var/lib/fairlane/fairlane.db does, and nothing else"
            )
        return File(Path(path).absolute())
    if url.drivername not in _POSTGRES:
        raise ValueError("must begin with postgresql:// or sqlite:///")
    query: dict[str, Any] = dict(url.query)
    # SQLAlchemy drops a parameter without a value, and makes a tuple of the values of one that is repeated
    given = parse_qsl(database_url.rpartition("@")[2].partition("?")[2], keep_blank_values=True)
    if any(not value for _, value in given) or any(isinstance(value, tuple) for value in query.values()):
        raise ValueError("has a parameter without a value or given twice; each must have one value")
    if unknown := sorted(query.keys() - set(PARAMETERS)):
        raise ValueError(f"has a parameter {unknown[0]!r}; it may have {', '.join(PARAMETERS)}")
    sslmode = query.pop("sslmode", None)
    if sslmode not in (None, *SSL_MODES):
        raise ValueError(f"sslmode must be one of {', '.join(SSL_MODES)}")
    if not (url.host or query.get("host")) or not path or "/" in path or url.port == 0:
        raise ValueError(
            "must name a host and a database, as postgresql://user:password@host:5432/fairlane does"
        )
    name = query.pop("application_name", "fairlane")
    return Server(url.set(drivername="postgresql+asyncpg", query=query), sslmode, name)
