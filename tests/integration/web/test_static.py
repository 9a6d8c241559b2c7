"""The pages' files over real HTTP: what is served, with which headers, and what is not."""

import gzip
import hashlib
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.integration.web.conftest import OpenBrowser, accessible, fits
from tests.support.streams import RawStream
from tests.support.talk import Talk, talking

from fairlane.web.pages import PAGES, POLICY, files

pytestmark = pytest.mark.anyio
WEB = Path(__file__).parents[3] / "web"


async def test_every_file_is_served_with_its_type_and_the_policy(talk: Talk) -> None:
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for path in files():
        answer = await talk.http.get(path)
        name = PAGES.get(path, path.removeprefix("/static/"))
        folder = WEB / "static" if not name.startswith("client/") else WEB
        assert answer.status_code == 200, path
        assert answer.content == (folder / name).read_bytes(), path
        ending = name.rpartition(".")[2]
        assert answer.headers["content-type"].startswith(kinds.get(ending, "text/plain")), path
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers


async def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere(talk: Talk) -> None:
    directives = {part.split()[0]: part.split()[1:] for part in POLICY.split("; ")}
    assert directives["default-src"] == ["'none'"]
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert directives[name] == ["'self'"], name
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert directives[name] == ["'none'"], name
    assert directives["require-trusted-types-for"] == ["'script'"]
    for path in PAGES:
        page = (await talk.http.get(path)).text
        assert "//" not in page.replace("http://www.w3.org/2000/svg", ""), "something from elsewhere"
        assert "<style" not in page
        assert " style=" not in page
        assert " on" not in page.replace(" one", ""), "an inline handler"


async def test_a_browser_asks_again_and_is_told_that_nothing_changed(talk: Talk) -> None:
    path = "/static/common/page.js"
    plain = await talk.http.get(path, headers={"Accept-Encoding": "identity"})
    packed = await talk.http.get(path, headers={"Accept-Encoding": "br, gzip;q=0.5"})
    assert plain.headers["cache-control"] == "no-cache"
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.content == packed.content
    assert plain.headers["etag"] != packed.headers["etag"]
    for seen, encoding in ((plain, "identity"), (packed, "gzip")):
        for known in (seen.headers["etag"], f'"other", W/{seen.headers["etag"]}'):
            headers = {"If-None-Match": known, "Accept-Encoding": encoding}
            answer = await talk.http.get(path, headers=headers)
            assert answer.status_code == 304, known
            assert answer.content == b""
            assert answer.headers["etag"] == seen.headers["etag"]
            assert answer.headers["content-security-policy"] == POLICY
    stale = await talk.http.get(path, headers={"If-None-Match": '"other"'})
    assert stale.status_code == 200
    assert hashlib.sha256(plain.content).hexdigest().startswith(plain.headers["etag"].strip('"'))
    assert gzip.decompress(gzip.compress(plain.content)) == packed.content


NOT_SERVED = [
    "/static/",
    "/static/nothing.js",
    "/static/../pages.py",
    "/static/%2e%2e/pages.py",
    "/static/..%2fpages.py",
    "/static/..%5cpages.py",
    "/static/common/../../pages.py",
    "/static//etc/passwd",
    "/static/common/",
    "/static/common/base.css%00",
    "/static/playground/index.html",
    "/static/pages.py",
    "/static/client/package.json",
    "/index.html",
]


async def test_nothing_else_is_served(talk: Talk) -> None:
    for path in NOT_SERVED:
        async with await RawStream.open(talk.served.url, path) as answer:  # httpx2 would tidy the path up
            assert answer.status == 404, path
            assert answer.headers["content-type"] == "application/json", path
            assert b"import" not in await answer.whole(100_000), path


async def test_pages_ask_for_no_key_and_calls_do(redis_url: str, tmp_path: Path) -> None:
    key = {"id": "acme", "tier": "paid", "sha256": hashlib.sha256(b"secret-of-acme").hexdigest()}
    async with talking(redis_url, tmp_path, keys=[key]) as talk:
        assert (await talk.http.get("/")).status_code == 200
        assert (await talk.http.get("/static/common/base.css")).status_code == 200
        assert (await talk.http.get("/api/me")).status_code == 401
        async with talk.client("secret-of-acme") as acme:
            caller = (await acme.get("/api/me")).json()
    assert caller | {"version": ""} == {
        "user": "acme",
        "tier": "paid",
        "key": "acme",
        "open": False,
        "delegating": False,
        "scopes": ["call"],
        "admin": False,
        "tiers": ["paid"],
        "modes": ["stream", "batch", "vision"],
        "version": "",
        "disabledFeatures": [],
        "limits": {},
        "userLimits": {},
        "quota": None,
    }


async def test_an_open_gateway_shows_no_page_to_strangers(talk: Talk) -> None:
    for headers in ({"Host": "evil.example"}, {"X-Forwarded-For": "203.0.113.7"}):
        answer = await talk.http.get("/", headers=headers)
        assert answer.status_code == 403
    caller = (await talk.http.get("/api/me", headers={"X-Fairlane-User": "alice"})).json()
    assert caller["open"]
    assert caller["delegating"]
    assert (caller["user"], caller["tier"], caller["tiers"]) == ("alice", "free", ["free", "paid"])


async def test_the_page_of_all_calls_shows_the_document(talk: Talk, open_browser: OpenBrowser) -> None:
    document = (await talk.http.get("/openapi.json")).json()
    calls = sum(method != "head" for methods in document["paths"].values() for method in methods)
    page = await (await open_browser(talk.served.url)).open("/docs")
    await page.locator("#calls details").nth(calls - 1).wait_for()
    assert await page.locator("#calls details").count() == calls
    await expect(page.locator("#calls summary .says", has_text="result when it is completed")).to_be_visible()
    chat = page.locator("#calls details", has=page.get_by_text("/v1/chat/completions", exact=True))
    await chat.locator("summary").click()
    assert "messages: [any JSON]" in await chat.locator("pre").first.inner_text()
    statuses = await chat.locator("td.statuses").all_inner_texts()
    assert statuses == ["200", "default"]
    await expect(page.locator("#about")).to_contain_text("Authorization: Bearer <key>")
    await accessible(page)
    await fits(page)


async def test_the_link_of_an_error_leads_to_the_explanation_of_its_code(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    error = (await talk.http.post("/v1/chat/completions", json={"model": 1})).json()["error"]
    page = await (await open_browser(talk.served.url)).open(error["docs_url"])
    row = page.locator("tr.wanted")
    await expect(row).to_contain_text("INVALID_REQUEST")
    await expect(row).to_be_in_viewport()
