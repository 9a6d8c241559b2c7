"""The address of the database, from the setting `database_url`. Pure."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

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

    host: str
    """Its name, or the directory of its socket."""
    port: int
    user: str | None
    password: str | None
    database: str
    sslmode: str | None
    application_name: str

    def __str__(self) -> str:
        return f"PostgreSQL at {self.host}:{self.port}, {self.database}"


Address = File | Server


def parse_address(database_url: str | None, data_dir: Path) -> Address:
    """Return the address in these settings. Raises ValueError with a sentence, without the URL: it may have a password."""
    if database_url is None:
        return File((data_dir / FILE).absolute())
    try:
        parts = urlsplit(database_url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme in _SQLITE:
        path = unquote(parts.path)[1:]  # three slashes: relative to here; four: from the root
        if not path or parts.netloc or parts.query:
            raise ValueError(
                "must name a file, as sqlite:////var/lib/fairlane/fairlane.db does, and nothing else"
            )
        return File(Path(path).absolute())
    if parts.scheme not in _POSTGRES:
        raise ValueError("must begin with postgresql:// or sqlite:///")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(query.keys() - set(PARAMETERS)):
        raise ValueError(f"has a parameter {unknown[0]!r}; it may have {', '.join(PARAMETERS)}")
    sslmode = query.get("sslmode")
    if sslmode not in (None, *SSL_MODES):
        raise ValueError(f"sslmode must be one of {', '.join(SSL_MODES)}")
    host, database = query.get("host") or parts.hostname, unquote(parts.path)[1:]
    if not host or not database or "/" in database or port == 0:
        raise ValueError(
            "must name a host and a database, as postgresql://user:password@host:5432/fairlane does"
        )
    return Server(
        host,
        port or 5432,
        unquote(parts.username) if parts.username else None,
        unquote(parts.password) if parts.password else None,
        database,
        sslmode,
        query.get("application_name") or "fairlane",
    )
