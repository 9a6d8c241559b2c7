"""Redis Clusters and Sentinels of real servers, on free ports of 127.0.0.1."""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from tests.support.servers import Server, any_binary, free_port, redis_binary, running_server

REPLICATION = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
NODE_TIMEOUT_MS = 1000


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 20) -> None:
    """Return as soon as `condition` returns something true. Raise TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        time.sleep(0.02)
    raise TimeoutError(f"waited {seconds} s for {what}")


def client_of(server: Server) -> Any:
    return redis.Redis(unix_socket_path=server.socket_path, decode_responses=True)


@dataclass
class Cluster:
    """The nodes of a cluster; all of them are known to each other."""

    nodes: list[Server]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes[:2])}"

    def slot(self, key: str) -> int:
        with self.any_client() as client:
            return int(client.cluster("KEYSLOT", key))

    @contextlib.contextmanager
    def any_client(self) -> Iterator[Any]:
        """A client of a node that lives."""
        with client_of(next(node for node in self.nodes if node.running)) as client:
            yield client

    def owner(self, key: str) -> Server:
        """The primary that owns the slot of a key."""
        slot = self.slot(key)
        with self.any_client() as client:
            ranges = client.execute_command("CLUSTER SLOTS")
        port = next(
            int(entry[2][1]) for entry in _plain_slots(ranges) if int(entry[0]) <= slot <= int(entry[1])
        )
        return next(node for node in self.nodes if node.port == port)

    def fails_over(self, key: str, killed: Server, seconds: float = 20) -> Server:
        """Wait until another node owns the slot of a key, and the cluster is up."""

        def taken_over() -> bool:
            with self.any_client() as client:
                return self.owner(key) is not killed and client.cluster("INFO")["cluster_state"] == "ok"

        wait_for(taken_over, "the fail-over", seconds)
        return self.owner(key)

    def follows(self, node: Server) -> None:
        """Wait until a node that was started again follows the primary that replaced it."""
        with client_of(node) as client:
            wait_for(lambda: client.info("replication").get("master_link_status") == "up", "it to follow")

    def move_slot(self, key: str, target: Server) -> None:
        """Move the slot of a key to another primary, as `redis-cli --cluster reshard` does."""
        slot, source = self.slot(key), self.owner(key)
        with client_of(source) as first, client_of(target) as second:
            ids = first.cluster("MYID"), second.cluster("MYID")
            second.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            first.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            while keys := first.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                first.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for client in (second, first):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])


def _plain_slots(ranges: Any) -> list[list[Any]]:
    """Return the reply of CLUSTER SLOTS as the server sends it; redis-py makes a dictionary of it."""
    if isinstance(ranges, dict):
        return [[low, high, found["primary"]] for (low, high), found in ranges.items()]
    return list(ranges)


@contextlib.contextmanager
def running_cluster(
    primaries: int = 3, replicas: int = 1, binary: str | None = None, *options: str
) -> Iterator[Cluster]:
    """A cluster that is up; each primary has so many replicas."""
    with contextlib.ExitStack() as stack:
        nodes, buses = [], []
        for _ in range(primaries * (1 + replicas)):
            buses.append(free_port())
            more = ("--cluster-enabled", "yes", "--cluster-port", str(buses[-1]), *REPLICATION)
            more += ("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-replica-validity-factor", "0")
            node = running_server(binary or any_binary(), *more, *options, port=free_port())
            nodes.append(stack.enter_context(node))
        clients = [stack.enter_context(client_of(node)) for node in nodes]
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        size = 16384 // primaries
        for at, client in enumerate(clients[:primaries]):
            last = 16383 if at == primaries - 1 else (at + 1) * size - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", at * size, last)
        ids = [client.cluster("MYID") for client in clients]
        for at, client in enumerate(clients[primaries:]):
            primary = ids[at % primaries]
            wait_for(lambda c=client, p=primary: p in str(c.cluster("NODES")), "the nodes to meet")  # type: ignore[misc]
            client.execute_command("CLUSTER", "REPLICATE", primary)
        for client in clients:
            wait_for(lambda c=client: c.cluster("INFO")["cluster_state"] == "ok", "the cluster to be up")  # type: ignore[misc]
            wait_for(lambda c=client: len(c.cluster("NODES")) == len(nodes), "all nodes to be known")  # type: ignore[misc]
        for client in clients[primaries:]:
            wait_for(
                lambda c=client: c.info("replication")["master_link_status"] == "up", "the replicas to follow"
            )  # type: ignore[misc]
        yield Cluster(nodes)


@dataclass
class Watched:
    """A primary, its replicas and the Sentinels that watch them."""

    servers: list[Server]
    sentinels: list[int]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinels)}/main"

    def primary(self) -> Server:
        """The primary as the Sentinels see it."""
        with redis.Redis(port=self.sentinels[0], decode_responses=True) as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        return next(server for server in self.servers if server.port == int(port))

    def fail_over(self) -> Server:
        """Have the Sentinels promote a replica while the primary goes on."""
        before = self.primary()
        with redis.Redis(port=self.sentinels[0], decode_responses=True) as client:
            wait_for(lambda: client.execute_command("SENTINEL", "FAILOVER", "main"), "a replica to promote")
        return self.promoted(before)

    def follows(self, server: Server) -> None:
        """Wait until a server that was started again follows the primary that replaced it."""
        with client_of(server) as client:
            wait_for(lambda: client.info("replication").get("master_link_status") == "up", "it to follow", 40)

    def promoted(self, before: Server) -> Server:
        """Wait until another server is the primary for all Sentinels."""

        def elsewhere() -> bool:
            for port in self.sentinels:
                with redis.Redis(port=port, decode_responses=True) as client:
                    _, at = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
                if int(at) == before.port:
                    return False
            return True

        wait_for(elsewhere, "a replica to be promoted")
        return self.primary()


@contextlib.contextmanager
def running_sentinels(replicas: int = 1, sentinels: int = 3, *options: str) -> Iterator[Watched]:
    """A primary named `main`, its replicas, and Sentinels, which only Redis has."""
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(lambda: [(process.kill(), process.wait()) for process in processes])
        primary = stack.enter_context(running_server(None, *REPLICATION, *options, port=free_port()))
        servers = [primary]
        for _ in range(replicas):
            more = ("--replicaof", f"127.0.0.1 {primary.port}", *REPLICATION, *options)
            servers.append(stack.enter_context(running_server(None, *more, port=free_port())))
        ports = [free_port() for _ in range(sentinels)]
        for port in ports:
            file = folder / f"{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor main 127.0.0.1 {primary.port} 2\nsentinel down-after-milliseconds main 1000\n"
                "sentinel failover-timeout main 5000\n"
            )
            command = [str(redis_binary()), str(file), "--sentinel"]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for port in ports:

            def complete(port: int = port) -> bool:
                with redis.Redis(port=port, decode_responses=True) as client:
                    state = client.sentinel_master("main")
                return bool(state["num-other-sentinels"] == sentinels - 1 and state["num-slaves"] == replicas)

            wait_for(complete, "the Sentinels to know each other")
        yield Watched(servers, ports)
