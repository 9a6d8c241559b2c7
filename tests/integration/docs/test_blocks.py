"""Every block of code in the documents is run, loaded or parsed, as its language asks; what cannot run here is listed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.prepared import command
from tests.support.servers import free_port

from fairlane.gateway.settings import load_settings

from .blocks import ROOT, Block, Desk, blocks, desk

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs").glob("*.md")),
]
ON_THE_DEMO = {"README.md", *(f"docs/{page}.md" for page in ("get-started", "apps", "background"))}
"""Pages for which `make run` is running. Others start what they need, in blocks of their own."""

EVERY_CHANGE = {"README.md", "docs/get-started.md", "docs/compare.md"}
"""Pages whose blocks `make test` runs; `make nightly` runs all of them."""

NOT_RUN = {
    "docs/http-apis.md: curl https://image.example.com/image/cat -H",
    "docs/http-apis.md: fairlane worker start --provider http --gate",
    "docs/operate.md: fairlane task cancel --user site/ann",
    "docs/operate.md: prometheus --config.file prometheus.yml",
    "docs/production.md: docker build -t fairlane:local .",
    "docs/production.md: echo 'FAIRLANE_WORKER_TOKEN=flw_demo_PUT_YOU",
    "docs/production.md: kubectl create secret generic fairlane-worke",
    "docs/production.md: python3 -m venv /opt/fairlane",
    "CONTRIBUTING.md: make run          # a gateway to try, with s",
    "README.md: make run",
    "docs/apps.md: FAIRLANE_CORS_ORIGINS=http://127.0.0.1:8000,",
    "docs/apps.md: export ANTHROPIC_BASE_URL=http://gateway:808",
    "docs/apps.md: fairlane key create site delegating=true sig",
    'docs/apps.md: import { watch } from "https://gateway.examp',
    "docs/models.md: DEEPSEEK_API_KEY=sk-PUT_YOURS_HERE fairlane",
    "docs/models.md: OLLAMA_NUM_PARALLEL=4 ollama serve",
    "docs/models.md: fairlane serve",
    "docs/models.md: vllm serve Qwen/Qwen3-32B --served-model-nam",
    "docs/get-started.md: . .venv/bin/activate     # for the command `",
    "docs/get-started.md: fairlane worker start --provider ollama --mo",
    "docs/get-started.md: make run",
}
"""Page and beginning of each block that cannot run in the tests; the page says why."""


def name(block: Block) -> str:
    return f"{block.page}: {block.text.splitlines()[0][:44].rstrip()}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a gateway with the demo's models."""
    port = free_port()
    with subprocess.Popen(
        command("demo", "--port", str(port)),
        cwd=tmp_path_factory.mktemp("demo"),
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout
            assert child.stdout.readline().startswith("Fairlane runs at")  # its models are there
            yield port
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(30)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page in EVERY_CHANGE else pytest.mark.slow) for page in PAGES]
)
def test_the_blocks_of_a_page_do_what_they_say(page: str, demo: int, tmp_path: Path) -> None:
    with desk(tmp_path, demo if page in ON_THE_DEMO else None) as here:
        for block in blocks(page):
            if block.note.startswith("not run"):
                assert name(block) in NOT_RUN, f"{block} is not run, and not listed here"
                continue
            here.run(block)
            if block.note.partition(" ")[0] in ("", "settings"):
                RUNNERS[block.language](here, block)


def test_what_is_listed_as_not_run_is_there() -> None:
    marked = {name(block) for page in PAGES for block in blocks(page) if block.note.startswith("not run")}
    assert marked == NOT_RUN


def test_every_block_has_a_language_and_the_index_leads_to_every_page() -> None:
    for page in PAGES:
        fences = len(re.findall(r"^```", (ROOT / page).read_text(), re.MULTILINE))
        assert fences == 2 * len(blocks(page)), f"{page}: a fence that is not seen"
        for block in blocks(page):
            assert block.language in RUNNERS, f"{block}: {block.language!r}"
            assert "…" not in block.text or block.language not in ("sh", "python", "js"), (
                f"{block} is to be copied"
            )
    index = (ROOT / "docs/index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index, page


@pytest.mark.parametrize(
    ("page", "file"), [("tutorial", "paid-free/ask.py"), ("models", "upstreams/fairlane.yaml")]
)
def test_an_example_is_the_block_of_its_page(page: str, file: str) -> None:
    assert (ROOT / "examples" / file).read_text() in {block.text for block in blocks(f"docs/{page}.md")}


def test_the_example_for_production_is_a_configuration() -> None:
    load_settings(ROOT / "examples/paid-free/fairlane.yaml", {}, {})


# ---- by language ----------


def run_shell(here: Desk, block: Block) -> None:
    here.shell(block)


def run_python(here: Desk, block: Block) -> None:
    here.command(block, sys.executable, "-P", "-c", here.local(block.text))


def read_yaml(here: Desk, block: Block) -> None:
    if block.note == "settings":
        here.settings(block)
    else:
        assert yaml.safe_load(block.text) is not None, block


def read_json(here: Desk, block: Block) -> None:
    json.loads(block.text)


def read_toml(here: Desk, block: Block) -> None:
    tomllib.loads(block.text)


def read_js(here: Desk, block: Block) -> None:
    """Run what needs nothing; what imports something, or wants a page, is only read."""
    checks = ["--check"] if re.search(r"^import ", block.text, re.MULTILINE) else []
    here.command(block, "node", *checks, "--input-type=module", "-", text=here.local(block.text))


def read_nginx(here: Desk, block: Block) -> None:
    """nginx takes it for a configuration. Its certificates are made, its servers' names are this machine's."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert nginx, "the tests need nginx: tests/install-tools"
    key, certificate = here.folder / "key.pem", here.folder / "cert.pem"
    here.command(
        block,
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
        *("-subj", "/CN=gateway.example", "-keyout", str(key), "-out", str(certificate)),
    )
    text = re.sub(r"(ssl_certificate +)[^;]+", rf"\1{certificate}", block.text)
    text = re.sub(r"(ssl_certificate_key +)[^;]+", rf"\1{key}", text)
    text = re.sub(r"\blisten (\d+)", lambda match: f"listen 127.0.0.1:{8000 + int(match[1])}", text)
    text = re.sub(r"\bserver gateway-\w+:", "server 127.0.0.1:", text)
    (here.folder / "nginx.conf").write_text(
        f"pid {here.folder}/nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{text}}}\n"
    )
    here.command(block, nginx, "-t", "-q", "-p", str(here.folder), "-c", "nginx.conf")


def look(here: Desk, block: Block) -> None:
    """What is only shown."""


RUNNERS = {
    "sh": run_shell,
    "python": run_python,
    "yaml": read_yaml,
    "json": read_json,
    "toml": read_toml,
    "js": read_js,
    "nginx": read_nginx,
    "lua": look,
    "text": look,
    "html": look,
    "caddyfile": look,
}
