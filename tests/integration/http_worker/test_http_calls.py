"""The HTTP worker and real servers: what goes out, what comes back, and what becomes of servers that do not behave."""

import pytest
from tests.integration.http_worker.targets import answer, call, payload, says, target

from fairlane.workers.adapters.endpoints.http import HttpAdapter
from fairlane.workers.sdk import TaskError

pytestmark = pytest.mark.anyio


async def test_a_call_keeps_status_headers_and_body() -> None:
    async with target(says(answer(b"hello", "201 Created", "X-Kind: a", "x-kind: b"))) as server:
        asked = payload(server.url("/a%20b?q=1&r=%2F"), "POST", headers=[["X-One", "1"]], body="grüße")
        told = await call(HttpAdapter(), asked)
    assert told == {
        "status": 201,
        "headers": [["content-length", "5"], ["x-kind", "a"], ["x-kind", "b"]],
        "body": "hello",
    }
    [request] = server.asked
    assert request.line == "POST /a%20b?q=1&r=%2F HTTP/1.1"
    assert request.body == "grüße".encode()
    assert request.header("host") == [f"127.0.0.1:{server.port}"]
    assert request.header("x-one") == ["1"]


async def test_an_address_of_this_machine_is_refused_unless_it_is_allowed() -> None:
    async with target(says(answer())) as server:
        asked = payload(server.url(), rules={"allowPrivate": []})
        with pytest.raises(TaskError, match="loopback") as refused:
            await call(HttpAdapter(), asked)
    assert (refused.value.code, refused.value.retryable) == ("ADDRESS_REFUSED", False)
    assert server.connections == 0
