"""`fairlane template`: what it prints, and that each mistake ends in a sentence that says what to do."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fairlane.gateway.cli import main as cli

TEMPLATES = """
models: {m: {}}
routes: {greet: {model: m}}
templates:
  greet:
    messages: [{role: user, content: "{{ name }}{% for one in list %} {{ one }}{% endfor %}"}]
    optional: [list]
"""


def fairlane(config: Path | None, *words: str, typed: str | None = None) -> Result:
    options = ["--config", str(config)] if config else []
    return CliRunner().invoke(cli.app, ["template", *words, *options], input=typed)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fairlane.yaml"
    path.write_text(TEMPLATES)
    return path


def test_texts_and_lists_are_filled_in(config: Path) -> None:
    made = fairlane(
        config, "render", "greet", "--set", "name=Ann", "--variables", "-", typed='{"list": ["a", "b"]}'
    )
    body = json.loads(made.stdout)
    assert body["messages"] == [{"role": "user", "content": "Ann a b"}]
    assert body["model"] == "m"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["greed", "--set", "name=x"], 2, "There is no template 'greed'; did you mean greet?"),
        (
            ["greet"],
            1,
            "fit the template greet: missing: name. It takes list, name. Give a text with --set NAME",
        ),
        (["greet", "--set", "name"], 2, "write NAME=TEXT"),
        (["greet", "--variables", "none.json"], 2, "none.json cannot be read: No such file or directory."),
        (["greet", "--variables", "-"], 2, "Standard input is not JSON"),
        (["greet", "--set", "name=x", "--tier", "gold"], 2, "There is no tier 'gold'; there are free, paid."),
    ],
)
def test_mistakes_end_in_a_sentence(config: Path, words: list[str], code: int, sentence: str) -> None:
    refused = fairlane(config, "render", *words, typed="[1")
    assert refused.exit_code == code
    assert sentence in refused.stderr


def test_without_templates_it_is_said_where_they_belong(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("port: 8080\n")
    assert "--config" in fairlane(empty, "render", "greet").stderr
