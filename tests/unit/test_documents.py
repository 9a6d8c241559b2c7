"""The documents say what the program does: what can be generated is compared, what is named must exist."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlane.gateway.app import EXACT, PATTERNS
from fairlane.gateway.cli import app
from fairlane.gateway.settings import settings_table

ROOT = Path(__file__).parents[2]


def test_the_settings_page_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert settings_table().strip() in page, (
        "run: fairlane check --markdown, and put it into docs/settings.md"
    )


def test_the_readme_names_every_call() -> None:
    readme = (ROOT / "README.md").read_text()
    for _, path in EXACT:
        if path not in ("/api/sse-stream", "/favicon.ico"):
            assert path in readme, path
    for _, pattern, _ in PATTERNS:
        beginning = pattern.pattern.partition("(?P<")[0]
        assert beginning.rstrip("/") in readme or beginning == "/static/.+", beginning


@pytest.mark.parametrize(
    "command",
    [
        *("serve", "demo", "check", "status", "key new", "worker run", "worker openai"),
        *("queues set", "queues list", "models set", "models list"),
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert len(result.output) > 200


def test_links_between_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
