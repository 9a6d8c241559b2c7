"""What every refusal looks like, on the native calls and on OpenAI's."""

from typing import Any

import httpx2

NATIVE = ("/api/openai", "/api/tasks")
OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
SUBMITS = NATIVE + OPENAI
SAID_OTHERWISE = ("/v1/responses",)
"""Their bodies do not go on as they came: what is not known is refused."""

VALID: dict[str, dict[str, Any]] = {
    "/api/openai": {"messages": []},
    "/api/tasks": {"type": "t", "payload": {}},
    "/v1/chat/completions": {"model": "m", "messages": []},
    "/v1/completions": {"model": "m", "prompt": "p"},
    "/v1/embeddings": {"model": "m", "input": "i"},
    "/v1/responses": {"model": "m", "input": "i"},
}
"""A body that each call takes."""


def sentence(answer: httpx2.Response) -> str:
    """The sentence of a refusal in its surface's own shape; fails when the shape is another one."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    if f"{answer.request.url.path}/".startswith("/v1/"):
        assert list(body) == ["error"]
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code", "docs_url"}
        assert isinstance(error["type"], str)
        assert error["type"].endswith("_error")
        text = error["message"]
    else:
        assert set(body) <= {"error", "code", "docsUrl", "taskId", "retryAfterMs"}
        assert isinstance(body["code"], str)
        text = body["error"]
    assert isinstance(text, str)
    assert len(text) > 5
    assert "Traceback" not in text
    return text


def check_refused(answer: httpx2.Response, *statuses: int) -> str:
    """A refusal with one of these statuses (any 4xx when none is given); its sentence."""
    expected = statuses or range(400, 500)
    assert answer.status_code in expected, (answer.status_code, answer.text[:300])
    return sentence(answer)
