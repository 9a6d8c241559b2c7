"""`fairlane key …` beside a running gateway."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.integration.admin.test_commands import fairlane
from tests.integration.keys.operating import KEYS, OPS, as_ops, bearer, told
from tests.integration.native.keys import secret
from tests.support.talk import Talk, talking

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECRET = re.compile(r"^  (flw?_\S+)$", re.MULTILINE)


@pytest.fixture
def gateway(redis_url: str, tmp_path: object) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    """On one kind of database."""
    return lambda **settings: talking(redis_url, tmp_path, **settings)  # type: ignore[arg-type]


async def test_a_key_is_made_shown_changed_rotated_and_revoked_in_a_shell(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]],
) -> None:
    async with gateway(keys=OPS) as talk:
        as_ops(talk)
        environ = {"FAIRLANE_ADMIN_KEY": secret("ops")}

        async def run(*arguments: str) -> str:
            done = await fairlane(talk, "key", *arguments, **environ)
            assert done.returncode == 0, done.stderr
            return done.stdout

        made = await run(
            "create", "app", "tier=paid", "models=m,n", "note=the shop", "expires=30d", "weight=2"
        )
        found = SECRET.search(made)
        assert found
        account = await told(await talk.http.get("/api/caller", headers=bearer(found[1])))
        assert (account["key"], account["tier"]) == ("app", "paid")
        token = SECRET.search(await run("create", "--worker", "models=m"))
        assert token
        assert token[1].startswith("flw_worker-")
        listed = await run("list")
        assert re.search(
            r"^app +caller +valid +paid +call +20\d\d-\S+ \S+ +- +database +the shop", listed, re.MULTILINE
        )
        assert re.search(r"^ops +caller +valid +free +admin +- +- +configuration", listed, re.MULTILINE)
        assert "there are more: --after app" in await run("list", "--limit", "1")
        await run("change", "app", "limits.requests_per_minute=60", "limits.max_running=4")
        changed = await run(
            "change", "app", "tier=null", "expires=2030-01-31", "admin=true", "limits.max_running=null"
        )
        assert re.search(r"^limits +requests_per_minute=60 *$", changed, re.MULTILINE)
        assert re.search(r"^user_limits +- *$", changed, re.MULTILINE)
        assert re.search(r"^tier +free", changed, re.MULTILINE)
        assert re.search(r'^models +\["m","n"\]', changed, re.MULTILINE)
        assert re.search(r"^expires +2030-01-31 00:00", changed, re.MULTILINE)
        assert re.search(r"^left +requests_per_minute 60 of 60 *$", await run("show", "app"), re.MULTILINE)
        await run("create", "site", "delegating=true", "user_limits.tokens_per_day=1000")
        shown = await run("show", "site", "--user", "ann")
        assert re.search(r"^left of the user's +tokens_per_day 1000 of 1000 *$", shown, re.MULTILINE)
        second = SECRET.search(await run("rotate", "app", "--keep", "0"))
        assert second
        assert (await talk.http.get("/api/caller", headers=bearer(found[1]))).status_code == 401
        assert "app is revoked; 0 tasks cancelled" in await run("revoke", "app", "--now")
        assert json.loads(await run("show", "app", "--json"))["state"] == "revoked"
        for arguments, sentence in (
            (["create", "b", "teir=paid"], "'teir' is no part of this call; did you mean tier?"),
            (
                ["change", "app", "limits.max_runing=4"],
                "'limits.max_runing' is no part of this call; did you mean max_running?",
            ),
            (["revoke", "ops"], "The configuration says what the key 'ops' is"),
        ):
            done = await fairlane(talk, "key", *arguments, **environ)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"fairlane: {sentence}"), done.stderr
            assert done.stderr.count("\n") == 1


async def test_the_first_key_says_that_workers_need_tokens(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]],
) -> None:
    async with gateway() as talk:
        done = await fairlane(talk, "key", "create", "app")
        assert done.stderr.startswith("fairlane: The first key of an open gateway must be an admin's")
        done = await fairlane(talk, "key", "create", "boss", "admin=true")
        assert (done.returncode, "Workers need tokens, too" in done.stderr) == (0, True)
        assert (await talk.http.get(KEYS)).status_code == 401
