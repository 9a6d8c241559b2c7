"""Fixtures: a browser for all these tests, a small web server for the test's page."""

import http.server
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Browser
from tests.support.browser import chromium

PAGE = b"""<!doctype html><meta charset="utf-8"><title>A page of another origin</title>
<script>
const log = {frames: [], opened: 0, failed: 0, closed: false};
const NAMES = ["start", "chunk", "done", "error", "cancelled", "gap", "restart", "bye"];

async function ask(gateway, body) {
  const answer = await fetch(gateway + "/api/openai", {
    method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
  });
  if (answer.status !== 202) throw new Error(await answer.text());
  return answer.json();
}

async function read(gateway, streamUrl, reader) {
  if (reader === "client") {
    const { follow } = await import(gateway + "/static/client/fairlane.js");
    const onConnection = state => { log.opened += state === "open"; log.failed += state === "lost"; };
    (async () => {
      try {
        for await (const { id, event, data } of follow(gateway + streamUrl, {onConnection}))
          if (NAMES.includes(event)) log.frames.push([id ?? "", event, JSON.stringify(data)]);
      } catch { log.failed++; }
      log.closed = true;
    })();
    return;
  }
  const source = new EventSource(gateway + streamUrl);
  source.onopen = () => log.opened++;
  source.onerror = () => { log.failed++; log.closed = source.readyState === EventSource.CLOSED; };
  for (const name of NAMES)
    source.addEventListener(name, event => {  // a lost connection is also told as `error`, without data
      if (event.data !== undefined) log.frames.push([event.lastEventId, event.type, event.data]);
    });
}
</script>
"""


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium; every page is that of another visitor."""
    async with chromium() as browser:
        yield browser


@pytest.fixture
def page_origin() -> Iterator[str]:
    """Where a web page is served that talks to gateways of another origin."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
