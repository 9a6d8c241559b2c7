"""Where the primary of a pool is: one server, the primary that Sentinels watch, or the node of a cluster that owns the slot.

    redis://user:password@host:6379/0                        one server; rediss:// with TLS, unix:// for a socket
    redis+sentinel://user:password@host:26379,host/NAME/0    rediss+sentinel:// with TLS
    redis+cluster://user:password@host:6379,host             rediss+cluster:// with TLS; any nodes

Options of redis-py follow as a query (`?ssl_ca_certs=…`); for Sentinels, `sentinel_username` and `sentinel_password` too.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from redis.asyncio import Connection, Sentinel
from redis.asyncio.connection import parse_url
from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from fairlane.queues.errors import StoreRefused
from fairlane.queues.store.wire import connect, disconnect

PORT, SENTINEL_PORT = 6379, 26379
SCHEMES = frozenset(
    ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
)


class Address:
    """One server. The base of the others."""

    mode = "standalone"
    """As the server's HELLO has it."""
    changes = False
    """Whether the primary can become another server while the old one still accepts commands."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self.has_password = bool(parts.password) or "password=" in parts.query
        self._text = parts.netloc.rpartition("@")[2] or parts.path

    def __str__(self) -> str:
        """Return the hosts, without names and passwords."""
        return self._text

    async def primary(self, timeout_ms: int) -> str:  # noqa: ARG002 - others ask
        """Return the URL of the primary. Raise OSError, TimeoutError or RedisError, or StoreRefused if it is of another kind."""
        return self._url

    async def connect(self, timeout_ms: int) -> Connection:
        """Return a new connection to the primary. Raise OSError, TimeoutError or RedisError."""
        return await connect(await self.primary(timeout_ms), timeout_ms)

    async def close(self) -> None:
        """Close connections that are kept for asking."""

    def wrong_kind(self, mode: str) -> str:
        """Return the sentence for an operator whose URL leads to a server of another `mode` ('' if it is the right one)."""
        if mode == self.mode:
            return ""
        if mode == "cluster":
            return f"the server at {self} is a node of a cluster: set redis_url to redis+cluster://HOST:PORT"
        if mode == "sentinel":
            return f"the server at {self} is a Sentinel: set redis_url to redis+sentinel://HOST:PORT/NAME"
        return f"the server at {self} is not a node of a cluster: set redis_url to redis://HOST:PORT"


class SentinelAddress(Address):
    """The primary that Sentinels watch under a name."""

    changes = True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._parts = parts = urlsplit(url)
        self._name, _, self._db = parts.path.strip("/").partition("/")
        query = dict(parse_qsl(parts.query))
        login = {name: query.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        self._query = urlencode(query)
        options: Any = parse_url(self._server("sentinel", SENTINEL_PORT, login=False))
        for name in ("host", "port", "db", "connection_class"):
            options.pop(name, None)
        self._options = options | login | {"ssl": parts.scheme.startswith("rediss")}
        self._sentinel: Sentinel | None = None

    async def primary(self, timeout_ms: int) -> str:
        if self._sentinel is None:
            seconds = timeout_ms / 1000
            times = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
            hosts = list(_hosts(self._parts, SENTINEL_PORT))
            self._sentinel = Sentinel(hosts, sentinel_kwargs=self._options | times)  # type: ignore[no-untyped-call]
        host, port = await self._sentinel.discover_master(self._name)
        return self._server(host, port)

    async def close(self) -> None:
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            await sentinel.aclose()

    def _server(self, host: str, port: int, *, login: bool = True) -> str:
        return _url_of(self._parts, host, port, self._db, self._query, login=login)


class ClusterAddress(Address):
    """The primary of a cluster that owns the slot of a pool."""

    mode = "cluster"

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url)
        self._parts = urlsplit(url)
        self._slot = key_slot(prefix.encode())
        self._nodes = dict.fromkeys(_hosts(self._parts, PORT))
        """All that are known; those that answered last come first."""

    async def primary(self, timeout_ms: int) -> str:
        error: Exception = ConnectionError(f"no node of the cluster at {self} answers")
        for node in list(self._nodes):
            try:
                host, port = await self._owner(node, timeout_ms)
            except (OSError, TimeoutError, RedisError) as failed:
                error = failed
                continue
            return self._server(host, port)
        raise error

    async def _owner(self, node: tuple[str, int], timeout_ms: int) -> tuple[str, int]:
        """Ask one node which primary owns the slot."""
        connection = await connect(self._server(*node), timeout_ms)
        try:
            await connection.send_command("CLUSTER", "SLOTS")
            ranges = await connection.read_response(timeout=timeout_ms / 1000)
        except ResponseError as error:
            raise StoreRefused(self.wrong_kind(Address.mode)) from error
        finally:
            await disconnect(connection)
        nodes = [[(_host(server[0], node[0]), int(server[1])) for server in entry[2:]] for entry in ranges]
        known = {server for servers in nodes for server in servers}
        self._nodes = dict.fromkeys([node, *sorted(known), *self._nodes])
        for entry, (owner, *_) in zip(ranges, nodes, strict=True):
            if entry[0] <= self._slot <= entry[1]:
                return owner
        raise ConnectionError(f"no node of the cluster at {self} owns slot {self._slot}")

    def _server(self, host: str, port: int) -> str:
        return _url_of(self._parts, host, port, "", self._parts.query)


def parse_address(url: str, prefix: str) -> Address:
    """Return the address of the pool whose keys begin with `prefix`. `url`: see the module; it is valid (`check_url`)."""
    kind = urlsplit(url).scheme.partition("+")[2]
    if kind == "sentinel":
        return SentinelAddress(url)
    return ClusterAddress(url, prefix) if kind == "cluster" else Address(url)


def check_url(url: str) -> None:
    """Raise ValueError, which does not show the URL, if it is none that `parse_address` takes."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme not in SCHEMES:
        raise ValueError(f"must begin with one of: {', '.join(f'{scheme}://' for scheme in sorted(SCHEMES))}")
    if "," in hosts and not kind:
        raise ValueError("must name one server; several hosts need redis+cluster:// or redis+sentinel://")
    if kind == "sentinel" and not parts.path.strip("/"):
        raise ValueError("must end with the name of the primary: redis+sentinel://HOST:PORT/NAME")
    try:
        valid = bool(parts.path) if scheme == "unix" else bool(hosts) and all(h for h, _ in _hosts(parts, 0))
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("is not a valid URL")


def _hosts(parts: SplitResult, default_port: int) -> Iterator[tuple[str, int]]:
    for host in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{host}")
        yield one.hostname or "", one.port or default_port


def _host(raw: bytes | None, asked: str) -> str:
    """Return the host of a node as another node reports it; empty: its own."""
    return raw.decode() if raw else asked


def _url_of(parts: SplitResult, host: str, port: int, db: str, query: str, *, login: bool = True) -> str:
    secret, at, _ = parts.netloc.rpartition("@")
    name = f"[{host}]" if ":" in host else host
    scheme = parts.scheme.partition("+")[0]
    return f"{scheme}://{secret + at if login else ''}{name}:{port}/{db}{'?' + query if query else ''}"
