"""The code blocks of the documents, and a shell, a folder and a gateway to run those of one page in, from top to bottom.

What is done with a block follows from its language. A comment right above it may say otherwise:

    <!-- test: file NAME -->               it is the file NAME, which later blocks of the page use
    <!-- test: background until READY -->  (sh) it runs on until the page is done; READY: `ready`, `model NAME`, a URL
    <!-- test: settings -->                (yaml) it is a whole fairlane.yaml by itself; other YAML need only be YAML
    <!-- test: not run, WHY -->            it cannot run here; `NOT_RUN` in test_blocks.py must know of it

Addresses of port 8080 lead to the page's gateway. `fl_app_PUT_YOURS_HERE` stands for the secret of the key `app`, `sha256: "…"`
for its hash, `signing_key: "…"` for what it signs with.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
from tests.support import prepared
from tests.support.servers import free_port
from tests.support.serving import NO_TLS

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.accounts.signed_tokens import signing_key
from fairlane.gateway.settings import load_settings

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(
    r"^(?:<!-- test: (?P<note>[^\n]*) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
DEADLINE_S = 60.0
PRELUDE = """\
set -eu -o pipefail
curl() { command curl --fail-with-body --silent --show-error --max-time 30 "$@"; }
[ -e .variables ] && . ./.variables
set -a
"""
"""An answer that is no success ends the block; what it assigns, later blocks of the page find."""
KEEP = "\nset +a\nexport -p | grep -v ' SHLVL=' > .variables\n"


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    page: str
    line: int
    language: str
    note: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Those of a page, in order."""
    text = (ROOT / page).read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start("language")) + 1,
            match["language"],
            match["note"] or "",
            match["text"],
        )
        for match in BLOCK.finditer(text)
    ]


def with_hashes(settings: str) -> str:
    """Settings whose `sha256: "…"` is the hash of what `secret` makes of the same id."""
    section, lines = "keys", []
    for line in settings.splitlines():
        if re.match(r"(keys|workers):", line):
            section = line.partition(":")[0]
        prefix = "flw" if section == "workers" else "fl"
        found = re.search(r'id: "?([\w.-]+)"?,.*sha256: ("…")', line)
        if found:
            secret = f"{prefix}_{found[1]}_secret"
            line = line.replace(found[2], f'"{digest(secret)}"', 1)
            line = line.replace('signing_key: "…"', f'signing_key: "{signing_key(secret)}"')
        lines.append(line)
    return "\n".join(lines) + "\n"


class Desk:
    """Where one page's blocks run: a folder, a port, and what was started in the background."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._http = httpx2.Client(trust_env=False, timeout=5, verify=NO_TLS)
        known = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
        for proxy in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            known.pop(proxy, None)
        self._environ = known | {
            "PATH": f"{prepared.folder()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FAIRLANE_PORT": str(self.port),
            "FAIRLANE_GATEWAY": self.url,
            "OPENAI_API_KEY": "none",
            "PYTHONPATH": str(folder),
        }

    def local(self, text: str) -> str:
        """The text with this page's addresses and secrets."""
        text = re.sub(r"(localhost|127\.0\.0\.1):8080", f"127.0.0.1:{self.port}", text)
        return re.sub(r"\b(flw?_[\w.-]+?)_PUT_YOURS_HERE", r"\1_secret", text)

    def run(self, block: Block) -> None:
        """Do with it what its language and its note say. Raises AssertionError."""
        kind, _, rest = block.note.partition(" ")
        if kind == "file":
            file = self.folder / rest
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.local(with_hashes(block.text)))
        elif kind == "background":
            self._start(block, rest.removeprefix("until "))
        else:
            assert kind in ("", "settings"), f"{block}: what is {block.note!r}?"

    # ---- what a block may be ----------

    def command(self, block: Block, *command: str, text: str = "") -> str:
        """Run a command to its end; what it printed."""
        done = subprocess.run(
            command,
            input=text,
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, (
            f"{block} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
        return done.stdout

    def shell(self, block: Block) -> str:
        """Run a block of shell lines."""
        return self.command(block, "bash", "-c", PRELUDE + self.local(block.text.replace("\\\n", " ")) + KEEP)

    def settings(self, block: Block) -> None:
        """Load it as fairlane.yaml."""
        file = self.folder / f"settings-{block.line}.yaml"
        file.write_text(with_hashes(block.text))
        load_settings(file, {}, {})

    # ---- what runs on ----------

    def _start(self, block: Block, ready: str) -> None:
        log = (self.folder / f"background-{block.line}.log").open("wb")
        with log:
            child = subprocess.Popen(
                ["bash", "-c", PRELUDE + self.local(block.text.replace("\\\n", " "))],
                cwd=self.folder,
                env=self._environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(child)
        until = time.monotonic() + DEADLINE_S
        while not self._is(ready):
            assert child.poll() is None, f"{block} has ended:\n{Path(log.name).read_text()[-2000:]}"
            assert time.monotonic() < until, (
                f"{block}: not {ready} in time:\n{Path(log.name).read_text()[-2000:]}"
            )
            time.sleep(0.05)

    def _is(self, ready: str) -> bool:
        kind, _, name = ready.partition(" ")
        with contextlib.suppress(httpx2.TransportError, ValueError):
            if kind == "model":
                for key in (*self._operators_key(), "fl_ops_secret", "none"):
                    answer = self._http.get(
                        f"{self.url}/api/admin/overview", headers={"Authorization": f"Bearer {key}"}
                    )
                    if answer.status_code == 200:
                        return any(name in worker["models"] for worker in answer.json()["workers"])
                return False
            url = f"{self.url}/readyz" if kind == "ready" else self.local(ready)
            return self._http.get(url).status_code == 200
        return False

    def _operators_key(self) -> list[str]:
        """Return the key that blocks of the page have put into FAIRLANE_API_KEY, if any."""
        variables = self.folder / ".variables"
        text = variables.read_text() if variables.exists() else ""
        return re.findall(r'^declare -x FAIRLANE_API_KEY="([^"]+)"$', text, re.MULTILINE)

    def close(self) -> None:
        """End what runs, the last first."""
        self._http.close()
        for child in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


@contextlib.contextmanager
def desk(folder: Path, port: int | None = None) -> Iterator[Desk]:
    """A desk, which is cleared at the end."""
    one = Desk(folder, port)
    try:
        yield one
    finally:
        one.close()
