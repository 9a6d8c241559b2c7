"""An internal error of the gateway, as the PRD words it: it can only be caused from inside."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_prd_internal_error(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as talk, talk.worker():

        def broken(*_: Any) -> Any:
            raise RuntimeError("a secret detail")

        monkeypatch.setattr(talk.served.gateway.dispatcher, "submit", broken)
        for body in ({}, {"async": True}, {"stream": True}):
            answer = await talk.http.post("/api/openai", json=body)
            assert answer.status_code == 500
            assert answer.json() == {"error": "Internal error", "code": "INTERNAL"}
