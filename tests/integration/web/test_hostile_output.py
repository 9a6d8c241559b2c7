"""What a model writes is a stranger's text: nothing of it runs, loads, leads anywhere it should not, or stops the page."""

import pytest
from playwright.async_api import Page, expect
from tests.integration.web.conftest import OpenBrowser, fits
from tests.integration.web.playground import ask, plain, say, shows, state
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

HOSTILE = """\
<img src=x onerror="window.hacked = 1"> and <svg onload="window.hacked = 2"></svg>

<script>window.hacked = 3</script>

<iframe srcdoc="<script>parent.hacked = 4</script>"></iframe>
<style>body { display: none }</style><base href="http://127.0.0.1:1/"><meta http-equiv=refresh content="0;url=/gone">
<form action="javascript:window.hacked = 5"><button autofocus onfocus="window.hacked = 6">x</button></form>

[a](javascript:window.hacked=7) [b](JaVaScRiPt&colon;window.hacked=8) [c](data:text/html,<script>window.hacked=9</script>)
[d](vbscript:x) [e](//evil.example/x) [f](/api/admin/overview) <javascript:window.hacked=10> [g]( javascript:window.hacked=11)
[h](https://good.example/path?a=1&b=2 "title\\" onmouseover=alert(1)") ![pixel](http://127.0.0.1:1/pixel.png) ![p][q]

[q]: javascript:window.hacked=12

`<b>code</b>` **bold <i>tag</i>** &lt;img src=x onerror=window.hacked=13&gt; &#60;script&#62;

```html
<script>window.hacked = 14</script>
```

|<img src=x onerror=window.hacked=15>|b|
|-|-|
|[j](javascript:window.hacked=16)|{{constructor.constructor('window.hacked = 17')()}}|

- <details open ontoggle="window.hacked = 18">
- \u001b[31mred\u001b[0m \u001b]0;title\u0007 \u001b[2J \u0000 \u202egnp.exe
"""


async def harmless(page: Page, base: str) -> None:
    """Assert that the output holds nothing but text, marks, and links that may be followed."""
    assert await page.evaluate("window.hacked") is None
    names = await page.locator("#output *").evaluate_all("all => [...new Set(all.map(e => e.localName))]")
    allowed = {*("p", "a", "code", "pre", "strong", "em", "del", "br", "hr", "blockquote", "div", "span")}
    allowed |= {*("ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "h3", "h4", "h5", "h6")}
    assert set(names) <= allowed
    attributes = await page.locator("#output *").evaluate_all(
        "all => [...new Set(all.flatMap(e => e.getAttributeNames()))]"
    )
    assert set(attributes) <= {*("class", "dir", "href", "title", "target", "rel", "start", "tabindex")} | {
        "data-language"
    }
    links = await page.locator("#output a").evaluate_all("all => all.map(e => e.href)")
    assert all(link.startswith(("http://", "https://", "mailto:")) for link in links), links
    assert not any(link.startswith(base) for link in links), "a link into the gateway"


async def test_hostile_markdown_is_shown_as_text(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        watched = await open_browser(talk.served.url)
        page = await watched.open()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await ask(page)
        task = await worker.take()
        pieces = [HOSTILE[at : at + 7] for at in range(0, len(HOSTILE), 7)]  # also every half of a tag
        await say(worker, task, pieces)
        await expect(page.locator("#output")).to_contain_text("ontoggle")
        await harmless(page, talk.served.url)
        await worker.answer(task)
        await state(page, "completed")
        await harmless(page, talk.served.url)
        text = await page.locator("#output").inner_text()
        for said in (
            '<img src=x onerror="window.hacked = 1">',
            "<script>window.hacked = 3</script>",
            "<base",
        ):
            assert said in text
        for said in ("[a](javascript:window.hacked=7)", "␛[31mred", "␀", "<b>code</b>", "<script>"):
            assert said in text
        links = await page.locator("#output a").evaluate_all("all => all.map(e => e.href)")
        assert links == ["https://good.example/path?a=1&b=2", "http://127.0.0.1:1/pixel.png"]
        rel = await page.locator("#output a").first.get_attribute("rel")
        assert rel == "noopener noreferrer nofollow"
        assert await page.title() == "Playground · Fairlane"
        await fits(page)
        await plain(page)
        visible = "".join(chr(0x2400 + ord(c)) if c < " " and c != "\n" else c for c in HOSTILE)
        await shows(page, visible)
        assert page.url.startswith(talk.served.url)
        assert all(url.startswith(talk.served.url) for url in asked)
