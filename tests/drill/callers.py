"""Callers: openai-python, streams and whole answers, at two gateways in turn. They keep what became of each call."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tests.support.serving import NO_TLS

LONGEST_S = 60.0
SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"by": {"type": "string"}, "said": {"type": "string"}},
            "required": ["by", "said"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Call:
    """A call that has ended. `why` it has no right answer; empty if it has one."""

    provider: str = ""
    model: str = ""
    why: str = ""


class Callers:
    """Those who use one key. Nothing is tried again: what goes wrong is seen."""

    def __init__(self, urls: list[str], secret: str) -> None:
        self._clients = [
            AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key=secret,
                max_retries=0,
                timeout=LONGEST_S,
                http_client=DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS),
            )
            for url in urls
        ]
        self._numbers = itertools.count(1)

    async def ask(
        self, model: str, count: int, concurrent: int, *, streams: bool, schema: bool
    ) -> list[Call]:
        """Make `count` calls, `concurrent` of them at a time."""
        left = iter(range(count))

        async def one_by_one() -> list[Call]:
            return [
                await self._call(model, next(self._numbers), streams=streams, schema=schema) for _ in left
            ]

        parts = await asyncio.gather(*(one_by_one() for _ in range(min(concurrent, count))))
        return [call for part in parts for call in part]

    async def _call(self, model: str, number: int, *, streams: bool, schema: bool) -> Call:
        client = self._clients[number % len(self._clients)]
        said = f"number {number}"
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": said}]}
        if schema:
            body["response_format"] = SCHEMA
        try:
            if streams and number // len(self._clients) % 2:
                text, told = await self._stream(client, body)
            else:
                answer = await client.chat.completions.create(**body)
                text, told = str(answer.choices[0].message.content), answer.model
        except openai.APIStatusError as error:
            return Call(why=f"{error.status_code} {error.code}")
        except openai.APIError as error:
            return Call(why=f"{type(error).__name__}: {error}"[:200])
        return _read(text, told, said)

    async def _stream(self, client: AsyncOpenAI, body: dict[str, Any]) -> tuple[str, str]:
        text, told = "", ""
        async with await client.chat.completions.create(stream=True, **body) as stream:
            async for chunk in stream:
                told = chunk.model
                if chunk.choices and chunk.choices[0].delta.content:
                    text += chunk.choices[0].delta.content
        return text, told

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def _read(text: str, told: str, said: str) -> Call:
    """Judge an answer: right is the whole answer of one provider to this message."""
    try:
        answer = json.loads(text)
        if answer == {"by": answer["by"], "said": said}:
            return Call(answer["by"], told)
    except (ValueError, TypeError, KeyError):
        pass
    return Call(why=f"a wrong answer to {said!r}: {text[:200]!r}")


@contextlib.asynccontextmanager
async def callers(urls: list[str], secret: str) -> AsyncIterator[Callers]:
    """Those who use one key, at these gateways."""
    some = Callers(urls, secret)
    try:
        yield some
    finally:
        await some.close()
