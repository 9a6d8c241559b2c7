"""The pages' own modules in a real browser: strings, snippets that can be run, Markdown, streams that break."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page
from tests.integration.web.conftest import new_browser
from tests.support.talk import Talk

from fairlane.gateway.admin.changes import described

pytestmark = pytest.mark.anyio
STATIC = Path(__file__).parents[3] / "web" / "static"
PAGES = ("playground", "dashboard", "docs")


@pytest.fixture(scope="module")
async def page(
    shared_gateway: Callable[..., AbstractAsyncContextManager[Talk]], browser: Browser
) -> AsyncIterator[Page]:
    """A page of the gateway whose modules tests call; they leave nothing on it."""
    async with shared_gateway() as talk, new_browser(browser, talk.served.url) as watched:
        yield await watched.open()
        await watched.check()


async def load(page: Page, path: str) -> Any:
    """What a module of strings exports."""
    return await page.evaluate("path => import(path).then(module => module.default)", path)


async def test_every_string_exists_in_both_languages(page: Page) -> None:
    common = await load(page, "/static/common/strings.js")
    for name in PAGES:
        strings = common | await load(page, f"/static/{name}/strings.js")
        for key, (text, chinese) in strings.items():
            values = [set(re.findall(r"\{(\w+)\}", form)) for form in _forms(text)]
            for other in _forms(chinese):
                assert set(re.findall(r"\{(\w+)\}", other)) == set().union(*values), key
                words = re.findall(r"\b(?:token|worker)s?\b", re.sub(r"\{\w+\}", "", other))
                assert not words, key  # each has one translation
                assert not re.search("[\u4e00-\u9fff][,;:?!]", other), key  # signs are Chinese, too
        files = [
            *(STATIC / name).rglob("*.js"),
            *(STATIC / "common").glob("*.js"),
            STATIC / name / "index.html",
        ]
        used = set()
        for file in files:
            text = file.read_text()
            used |= set(re.findall(r"""\bt\(\s*"([\w.]+)\"""", text))
            used |= set(re.findall(r"""data-t(?:-label|-placeholder)?="([\w.]+)\"""", text))
        assert used
        assert used <= strings.keys()


async def test_every_limit_is_explained_in_chinese_too(page: Page) -> None:
    chinese = await page.evaluate(
        "path => import(path).then(module => module.CHINESE)", "/static/dashboard/actions.js"
    )
    assert set(chinese) == {*described("queue"), *described("model")}


def _forms(text: Any) -> list[str]:
    return list(text.values()) if isinstance(text, dict) else [text]


MARKDOWN = """\
# Title

A *b* **c** ~~d~~ `e` <f> &amp; \\* [g](https://h.example) <https://i.example>
second line\\
third

- one
  - two

    more
- [x] three

3. four
4. five

> quote
> more

| left | right |
|:--|--:|
| 1 | `2` |

```py
if True:
    print("x")
```
after
---
    indented

~~~
never closed
"""


async def test_markdown_is_marked_once_it_is_complete(page: Page) -> None:
    growing, *drawn = await page.evaluate(
        """async text => {
          const { TextView } = await import("/static/common/markdown.js");
          const drawn = [];
          for (const size of [1, 7, 1e6]) {
            const box = document.createElement("div");
            const view = new TextView(box);
            for (let end = size; end < text.length + size; end += size) view.show(text.slice(0, end));
            if (!drawn.length) drawn.push(box.textContent);
            view.show(text, true);
            drawn.push(new XMLSerializer().serializeToString(box));
          }
          return drawn;
        }""",
        MARKDOWN,
    )
    assert growing == MARKDOWN
    assert len(set(drawn)) == 1
    for part in (
        *(
            '<h3 dir="auto">Title</h3>',
            "<em>b</em> <strong>c</strong> <del>d</del> <code>e</code> &lt;f&gt; &amp; *",
        ),
        *(
            'href="https://h.example/"',
            'href="https://i.example/"',
            "<br",
            "☑ ",
            '<ol start="3">',
            "<blockquote>",
        ),
        *('<th class="right"', 'data-language="py"', 'print("x")', "never closed"),
    ):
        assert part in drawn[0], part


async def test_links_lead_out_or_nowhere(page: Page) -> None:
    safe = {
        "https://a.example/b": "https://a.example/b",
        "HTTP://A.example": "http://a.example/",
        "mailto:a@b.example": "mailto:a@b.example",
    }
    unsafe = [
        *("javascript:alert(1)", " javascript:alert(1)", "java\nscript:alert(1)", "JAVASCRIPT:alert(1)"),
        *("data:text/html,x", "vbscript:x", "file:///etc/passwd", "blob:http://a/b", "ftp://a/b"),
        *(
            "//a.example",
            "/api/admin/overview",
            "#x",
            "x",
            "",
            "http://",
            "about:blank",
            "filesystem:http://a/b",
        ),
    ]
    answers = await page.evaluate(
        """async all => {
          const { safeLink } = await import("/static/common/markdown.js");
          return all.map(safeLink);
        }""",
        [*safe, *unsafe],
    )
    assert answers == [*safe.values(), *[None] * len(unsafe)]
