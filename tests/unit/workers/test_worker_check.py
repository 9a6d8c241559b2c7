"""`fairlane worker start` and `fairlane worker test` from the command line, against scripted upstreams."""

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import respx
from tests.support.upstreams import anthropic_error, anthropic_events, anthropic_message, sse
from typer.testing import CliRunner, Result

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.adapters.dialects.anthropic import request as anthropic
from fairlane.workers.adapters.dialects.chat import ANTHROPIC, HINTS, Chat
from fairlane.workers.adapters.dialects.gemini import request as gemini
from fairlane.workers.adapters.fields import FIELDS, REJECTED
from fairlane.workers.cli import app

BASE = "http://upstream.test/v1"
KEY = "sk-very-secret"


def fairlane(*words: str, **env: str) -> Result:
    keys = dict.fromkeys((provider.key_env for provider in PROVIDERS.values()), "")
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", **keys, **env})


@pytest.mark.parametrize("name", [name for name, provider in PROVIDERS.items() if provider.needs_key])
def test_a_missing_key_is_named(name: str) -> None:
    for start in (("start", "--provider", name), (name,)):  # a provider's name alone starts its worker, too
        refused = fairlane(*start, "--model", "m")
        assert refused.exit_code == 2
        assert f"{PROVIDERS[name].key_env} is not set" in refused.output
    other = fairlane("test", "--provider", name, "--model", "m", "--api-key-env", "MINE")
    assert (other.exit_code, "MINE is not set" in other.output) == (2, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["test", "--provider", "acme", "--model", "m"],
            "'acme' is not a provider; there are openai, deepseek",
        ),
        (["test", "--provider", "vllm", "--model", "*"], "needs the names of models"),
        (["test", "--provider", "vllm", "--model", "m", "--require", "vision"], "There is no check vision"),
        (
            ["test", "--provider", "vllm", "--model", "m", "--task-type", "openaiSpeech"],
            "name --task-type openaiLike",
        ),
        (
            [
                "test",
                "--provider",
                "anthropic",
                "--model",
                "m",
                "--api-key-env",
                "PATH",
                "--task-type",
                "openaiSpeech",
            ],
            "'openaiSpeech' is not a task type",
        ),
        (
            ["start", "--provider", "vllm", "--model", "m", "--base-url", "ftp://x"],
            "'ftp://x' is not a base URL",
        ),
        (
            ["start", "--provider", "vllm", "--model", "m", "--upstream-model", "a", "--upstream-model", "b"],
            "give one for each",
        ),
    ],
)
def test_mistakes_end_in_a_sentence(words: list[str], sentence: str) -> None:
    refused = fairlane(*words)
    assert refused.exit_code == 2
    assert sentence in refused.output


class Claude:
    """An upstream that answers each of the small requests, as far as it `can`."""

    def __init__(self, *can: str) -> None:
        self.can = can
        self.bodies: list[Any] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = msgspec.json.decode(request.content)
        self.bodies.append(body)
        text = json.dumps(body["messages"])
        if body["model"] != "real":
            return httpx2.Response(
                404, json=anthropic_error("not_found_error", f"model: {body['model']} {KEY}")
            )
        if body["stream"]:
            if "stream" not in self.can:
                return httpx2.Response(529, json=anthropic_error("overloaded_error", "Overloaded\x1b[2J"))
            events = anthropic_events([{"type": "text", "text": "1 2 3 4 5"}])
            return httpx2.Response(
                200, headers={"Content-Type": "text/event-stream"}, content=sse(*events, named=True)
            )
        content: Any = {"type": "text", "text": "OK"}
        if body.get("tools") and "tools" in self.can:
            content = {"type": "tool_use", "id": "c", "name": "get_weather", "input": {"city": "Paris"}}
        elif "JSON object" in text and "json" in self.can:
            content = {"type": "text", "text": '{"ok": true}'}
        return httpx2.Response(200, json=anthropic_message([content]))


def check(claude: Claude, *words: str) -> Result:
    with respx.mock(assert_all_called=False) as router:
        router.get(f"{BASE}/models?limit=1000").mock(
            return_value=httpx2.Response(200, json={"data": [{"id": "real"}]})
        )
        router.post(f"{BASE}/messages").mock(side_effect=claude.answer)
        return fairlane(
            *(
                "test",
                "--provider",
                "anthropic",
                "--model",
                "fast",
                "--upstream-model",
                "real",
                "--base-url",
                BASE,
            ),
            *words,
            ANTHROPIC_API_KEY=KEY,
        )


def findings(result: Result) -> dict[str, Any]:
    return {(row := json.loads(line))["check"]: row for line in result.output.splitlines()}


def test_a_good_provider_is_told_so_request_by_request() -> None:
    claude = Claude("stream", "tools", "json")
    result = check(claude, "--json", "--require", "tools", "--require", "json")
    assert result.exit_code == 0
    found = findings(result)
    assert list(found) == ["models", "answer", "stream", "tools", "json", "refusal"]
    assert all(row["works"] for row in found.values())
    assert found["models"]["says"] == "1 listed, real is among them"
    assert found["answer"]["usage"]["prompt_tokens"] == 33
    assert found["stream"]["usage"]["completion_tokens"] == 7
    assert found["stream"]["ttftMs"] is not None
    assert found["refusal"]["failure"]["code"] == "BAD_REQUEST"
    assert found["refusal"]["failure"]["httpStatus"] == 404
    assert KEY not in result.output
    assert all(body["max_tokens"] <= 1024 for body in claude.bodies)
    assert len(claude.bodies) == 5


def test_what_does_not_work_is_told_with_its_failure_code_and_ends_with_1() -> None:
    result = check(Claude())
    assert result.exit_code == 1
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert "works" in lines["answer"]
    assert "MODEL_TOO_BUSY (529), would be tried again" in lines["stream"]
    assert "\x1b" not in result.output
    assert "no call of the tool, but 'OK'" in lines["tools"]
    assert "no JSON: 'OK'" in lines["json"]


def test_what_nobody_requires_may_fail() -> None:
    assert check(Claude("stream")).exit_code == 0
    assert check(Claude("stream"), "--require", "tools").exit_code == 1


@respx.mock
def test_a_server_that_says_anything_is_not_believed() -> None:
    endless = sse(*[{"choices": [{"delta": {"content": "x" * 5000}}]}] * 100)
    respx.get("http://localhost:8000/v1/models").mock(return_value=httpx2.Response(200, json=[]))
    respx.post("http://localhost:8000/v1/chat/completions").mock(
        side_effect=lambda request: (
            httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=endless)
            if msgspec.json.decode(request.content)["stream"]
            else httpx2.Response(200, json={"choices": "none"})
        )
    )
    found = findings(fairlane("test", "--provider", "vllm", "--model", "m", "--json"))
    assert not found["models"]["works"]
    assert found["answer"]["failure"]["code"] == "JSON_PARSE_FAILED"
    assert "ignores max_tokens" in found["stream"]["failure"]["message"]


def test_the_page_on_models_has_every_provider() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    for provider in PROVIDERS.values():
        assert f"| `{provider.name}` |" in page
        assert f"`{provider.base_url}`" in page
        assert f"`{provider.key_env}`" in page


def test_the_table_of_chat_has_every_field_and_what_becomes_of_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
    chat = page.partition("### Chat Completions")[2].partition("\n### ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in chat.splitlines()]
    becomes = {
        name: row[1:] for row in rows if len(row) == 4 for name in re.findall(r"`([a-z_]+)[:`]", row[0])
    }
    own = {"model", "stream", "stream_options", "modalities", ANTHROPIC}
    for name in {*HINTS, *Chat.__struct_fields__} - own:
        assert name in becomes, name
    for at, ignored in ((1, anthropic.IGNORED), (2, gemini.IGNORED)):
        assert {name for name, row in becomes.items() if row[at] == "ignored"} - {"name", "detail"} == (
            HINTS - own | ignored
        )
    sent = FIELDS["openaiLike"]
    assert {name for name, row in becomes.items() if row[0] == "ignored"} == HINTS - own - sent
    assert {name for name, row in becomes.items() if row[0] == "rejected"} <= {*REJECTED, "file_id"}
