"""What `database_url` may be."""

from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from fairlane.gateway.database.address import File, Server, parse_address
from fairlane.gateway.settings import Settings


def test_no_url_is_a_file_in_the_data_directory() -> None:
    assert parse_address(None, Path("/data")) == File(Path("/data/fairlane.db"))


def test_a_file_is_named_from_the_root_or_from_here() -> None:
    assert parse_address("sqlite:////var/lib/a%20b.db", Path()) == File(Path("/var/lib/a b.db"))
    assert parse_address("sqlite:///here.db", Path()) == File(Path("here.db").absolute())


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
def test_a_server_with_all_that_a_url_says(scheme: str) -> None:
    url = f"{scheme}://u%40x:p%2Fw@db.example:6543/fair?sslmode=require&application_name=lane"
    parsed = parse_address(url, Path())
    assert isinstance(parsed, Server)
    assert (parsed.sslmode, parsed.application_name) == ("require", "lane")
    assert parsed.url == URL.create("postgresql+asyncpg", "u@x", "p/w", "db.example", 6543, "fair")
    assert "p/w" not in str(parsed)


def test_a_socket_stands_in_for_the_host() -> None:
    parsed = parse_address("postgresql://fairlane@/fair?host=/run/postgresql", Path())
    assert str(parsed) == "PostgreSQL at /run/postgresql:5432, fair"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/d",
        "sqlite://",
        "sqlite:///:memory:?x=1",
        "sqlite://host/file.db",
        "sqlite://user@/file.db",
        "sqlite://:5/file.db",
        "sqlite:///file.db?mode=",
        "postgresql://u:secret@h",
        "postgresql://u:secret@h:0/d",
        "postgresql://u:secret@h:port/d",
        "postgresql:///d",
        "postgresql://u:secret@h/d?sslmode=sometimes",
        "postgresql://u:secret@h/d?sslmode=",
        "postgresql://h/d?sslmode=require&sslmode=disable",
        "postgresql://u:secret@h/d?application_name=a&application_name=b",
        "postgresql://u:secret@h/d?pool=5",
    ],
)
def test_others_are_refused_with_a_sentence_that_tells_no_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|has a parameter|is not a valid URL") as raised:
        Settings(database_url=url)
    said = raised.value.errors(include_input=False)[0]["msg"]  # type: ignore[attr-defined]
    assert "secret" not in said
