"""Bodies that nobody thought of: whatever comes, the answer is a success or a sentence."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.bad_input.shapes import SUBMITS, VALID, check_refused

JSON = {"Content-Type": "application/json"}
BUDGET = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

texts = st.text(st.characters(exclude_categories=()), max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    "model",
    "messages",
    "prompt",
    "input",
    "stream",
    "async",
    "timeout",
    "mode",
    "priority",
    "onDisconnect",
    "resultTtlMs",
    "repair",
    "metadata",
    "type",
    "payload",
    "stream_options",
    "encoding_format",
    "max_tokens",
    "n",
    "tools",
]
bodies = st.dictionaries(st.sampled_from(FIELDS) | texts, values, max_size=6)
paths = st.sampled_from(SUBMITS)
printable = st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f")

pytestmark = pytest.mark.filterwarnings(  # the gateway in the other thread may use its own randomness
    "ignore::hypothesis.errors.HypothesisDeprecationWarning"
)


def check(http: httpx2.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body, headers=JSON)
    if answer.status_code not in (200, 202):
        check_refused(answer)


@BUDGET
@given(path=paths, body=bodies)
def test_any_object_is_taken_or_refused_with_a_sentence(
    http: httpx2.Client, path: str, body: dict[str, Any]
) -> None:
    check(http, path, json.dumps(body).encode())


@BUDGET
@given(path=paths, body=bodies)
def test_any_fields_beside_a_valid_body_are_taken_or_refused(
    http: httpx2.Client, path: str, body: dict[str, Any]
) -> None:
    check(http, path, json.dumps({**body, **VALID[path]}).encode())


@BUDGET
@given(path=paths, body=st.binary(max_size=60))
def test_any_bytes_are_refused_with_a_sentence(http: httpx2.Client, path: str, body: bytes) -> None:
    check(http, path, body)


@BUDGET
@given(path=paths, at=st.integers(0, 200), noise=st.binary(max_size=3))
def test_a_damaged_body_is_taken_or_refused(http: httpx2.Client, path: str, at: int, noise: bytes) -> None:
    body = json.dumps({**VALID[path], "metadata": {"a": "é\u2028"}}, ensure_ascii=False).encode()
    at %= len(body)
    check(http, path, body[:at] + noise + body[at + 1 :])


@BUDGET
@given(
    name=st.sampled_from(
        ["timeout", "priority", "mode", "on-disconnect", "result-ttl", "repair", "metadata", "user", "tier"]
    ),
    value=st.text(printable, min_size=1, max_size=12),
)
def test_any_header_of_ours_is_taken_or_refused(http: httpx2.Client, name: str, value: str) -> None:
    path = "/v1/chat/completions"
    headers = {b"X-Fairlane-" + name.encode(): value.encode("latin-1")}
    answer = http.post(path, json=VALID[path], headers=headers)
    if answer.status_code != 200:
        check_refused(answer)
