"""What an operator does with keys by HTTP."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.talk import Talk

KEYS = "/api/admin/keys"
OPS = [key("ops", scopes=["admin"])]
"""The configuration of a gateway with an admin, who is `secret("ops")`."""

Start = Callable[..., AbstractAsyncContextManager[Talk]]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def as_ops(talk: Talk) -> Talk:
    """The same, spoken with by the configured admin."""
    talk.http.headers.update(bearer(secret("ops")))
    return talk


async def told(answer: httpx2.Response, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def create(talk: Talk, **body: Any) -> dict[str, Any]:
    return await told(await talk.http.post(KEYS, json=body), 201)


async def revoke(talk: Talk, key_id: str, **body: Any) -> dict[str, Any]:
    return await told(await talk.http.post(f"{KEYS}/{key_id}/revoke", json=body))


async def rotate(talk: Talk, key_id: str, **body: Any) -> dict[str, Any]:
    return await told(await talk.http.post(f"{KEYS}/{key_id}/rotate", json=body))


async def change(talk: Talk, key_id: str, **body: Any) -> dict[str, Any]:
    return await told(await talk.http.patch(f"{KEYS}/{key_id}", json=body))


async def status(talk: Talk, token: str) -> int:
    """What a caller with this secret is answered."""
    return (await talk.http.get("/api/me", headers=bearer(token))).status_code


async def becomes(talk: Talk, token: str, wanted: int) -> None:
    """Wait until a caller with this secret is answered so."""

    async def so() -> bool:
        return await status(talk, token) == wanted

    await until(so, f"the key to get {wanted}")
