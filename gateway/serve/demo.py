"""`fairlane demo`: a gateway on loopback with two simulated models, its data in a directory that is removed at the end."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from fairlane.gateway.chains.settings import ChainSettings
from fairlane.gateway.serve.start import run
from fairlane.gateway.serve.workers import OwnWorker
from fairlane.gateway.settings import ModelSettings, Settings

FAST, SMALL = "demo-fast", "demo-small"
MODELS = {
    FAST: ("--slots=8", "--ttft-ms=150", "--tokens-per-second=80"),
    SMALL: ("--slots=1", "--ttft-ms=400", "--tokens-per-second=20"),
}
"""The options of each simulated model. The small one has one slot, so that a second request shows what waiting looks like."""

CHAIN: dict[str, Any] = {
    "optional": ["points"],
    "stages": [
        {
            "name": "notes",
            "each": "points",
            "model": FAST,
            "parameters": {"max_tokens": 40},
            "messages": [{"role": "user", "content": "Notes on {{ item }}, for an article on {{ topic }}"}],
        },
        {
            "name": "outline",
            "model": SMALL,
            "parameters": {"max_tokens": 30},
            "messages": [
                {
                    "role": "user",
                    "content": "An outline for an article on {{ topic }}.\n{{ stages.notes.content }}",
                }
            ],
        },
        {
            "name": "article",
            "model": FAST,
            "messages": [{"role": "user", "content": "Write it out:\n{{ stages.outline.content }}"}],
        },
    ],
}
"""The chain `article`: several stages under one task."""


def demo_settings(port: int, data_dir: Path) -> Settings:
    """Settings of the demo: they depend on nothing else, above all not on a configuration that lies around."""
    chains = {"article": ChainSettings.model_validate(CHAIN)}
    return Settings(
        port=port,
        data_dir=data_dir,
        log_level="warning",
        drain_ms=2000,
        chains=chains,
        models={name: ModelSettings() for name in MODELS},
        no_worker_grace_ms=60_000,  # a client that is faster than the workers waits for them
    )


def demo_workers() -> dict[str, OwnWorker]:
    """One for each simulated model."""
    return {
        name: OwnWorker(("simulate", f"--name={name}", f"--model={name}", *options))
        for name, options in MODELS.items()
    }


def banner(url: str) -> str:
    """What to try, ready to be copied."""
    command = "fairlane" if shutil.which("fairlane") else Path(sys.executable).with_name("fairlane")
    return f"""\
Fairlane runs at {url} with two simulated models, {FAST} and {SMALL}. Ctrl-C ends it.

Open {url} in a browser: a playground to watch a task wait, run, break off and come back. Or try in another terminal:

1. An answer:

curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{FAST}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

2. A stream. {SMALL} does one thing at a time; start two, and the second shows its position:

curl -N {url}/api/openai -H 'Content-Type: application/json' \\
  -d '{{"model": "{SMALL}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

3. OpenAI's Python SDK:

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
stream = client.chat.completions.create(
    model="{FAST}", stream=True, messages=[{{"role": "user", "content": "Hello"}}]
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)

4. A chain: several stages under one task.

curl -N {url}/api/tasks -H 'Content-Type: application/json' \\
  -d '{{"chain": "article", "stream": true, "variables": {{"topic": "queues", "points": ["order", "patience"]}}}}'

To watch queues and workers: {command} status --gateway {url}
"""


def run_demo(port: int) -> int:
    """Run the demo until Ctrl-C; the exit code. Nothing of it outlives this call. Where the port is taken, nothing begins."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="fairlane-demo-") as data_dir:
        settings = demo_settings(port, Path(data_dir))
        return run(
            settings,
            bound=lambda: print(banner(url), flush=True),
            extra=demo_workers(),
            port_option="--port, or with `make run PORT=8090`",
        )
