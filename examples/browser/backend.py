"""A page and its back end: the back end submits with its key, the page gets a link to read this one task.

Serves http://127.0.0.1:8000 (PORT). Reads FAIRLANE_GATEWAY, FAIRLANE_KEY and MODEL. The gateway must allow the page's origin:

    FAIRLANE_CORS_ORIGINS=http://127.0.0.1:8000 fairlane serve
    fairlane worker simulate --model demo
    python examples/browser/backend.py
"""

import json
import os
import urllib.error
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

GATEWAY = os.environ.get("FAIRLANE_GATEWAY", "http://127.0.0.1:8080").rstrip("/")
KEY = os.environ.get("FAIRLANE_KEY")
MODEL = os.environ.get("MODEL", "demo")


def submit(question: str) -> dict[str, str]:
    """Submit a task; the link to its stream. `async`: do not wait. `stream`: its events hold the output as it comes."""
    messages = [{"role": "user", "content": question}]
    body = json.dumps({"model": MODEL, "async": True, "stream": True, "messages": messages}).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    request = urllib.request.Request(f"{GATEWAY}/api/openai", body, headers)  # noqa: S310 (your own address)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return {"streamUrl": GATEWAY + json.load(answer)["streamUrl"]}


class Page(SimpleHTTPRequestHandler):
    """Serves the files of this folder, and POST /ask."""

    def do_POST(self) -> None:
        question = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        try:
            status, answer = 200, submit(question)
        except urllib.error.HTTPError as refusal:  # the gateway says why: no worker, queue full …
            status, answer = refusal.code, json.load(refusal)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    page = partial(Page, directory=str(Path(__file__).parent))
    with ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), page) as server:
        print(f"Open http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
