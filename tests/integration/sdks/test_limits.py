"""openai-python and the limits of a key: its exceptions, what they and answers tell, and when it comes again by itself."""

from pathlib import Path

import openai
import pytest

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.settings import CallerKey, KeyLimits

from .openais import python_sdk
from .stage import MESSAGES, staged

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"


def limited(**limits: int) -> list[CallerKey]:
    return [CallerKey(id="team", sha256=digest("right"), limits=KeyLimits(**limits))]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reached_limit_is_a_rate_limit_error_that_says_which(
    redis_url: str, tmp_path: Path, kind: str, stream: bool
) -> None:
    keys = limited(requests_per_day=1, tokens_per_day=50_000)
    async with (
        staged(redis_url, tmp_path, keys=keys, key="right") as stage,
        python_sdk(kind, stage.base_url, api_key="right", max_retries=0) as sdk,
    ):
        call = sdk.chunks if stream else sdk.call
        await sdk.call(CHAT, model="talk", messages=MESSAGES)
        with pytest.raises(openai.RateLimitError) as caught:
            await call(CHAT, model="talk", messages=MESSAGES)
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "requests")
        assert "on requests per day (RPD): Limit 1, Used 1, Requested 1. Please try again in 23h5" in str(
            caught.value
        )
        headers = caught.value.response.headers
        assert 86_000 < int(headers["retry-after"]) <= 86_400
        assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == (
            "1",
            "0",
        )
        assert headers["x-ratelimit-reset-requests"].startswith("23h5")
        assert int(headers["x-ratelimit-remaining-tokens"]) < 50_000


async def test_the_sdk_comes_again_when_it_is_told_to_and_is_served(
    redis_url: str, tmp_path: Path, kind: str
) -> None:
    keys = limited(requests_per_minute=60)  # one more each second
    async with (
        staged(redis_url, tmp_path, keys=keys, key="right") as stage,
        python_sdk(kind, stage.base_url, api_key="right", max_retries=5) as sdk,
    ):
        while 429 not in sdk.statuses:
            await sdk.call(CHAT, model="talk", messages=MESSAGES)
        assert sdk.statuses[-1] == 200, "the last call was served at last"
