"""A page's back end: submits with its key, and gives the page a link that reads this one task.

Three programs, each in a terminal of its own; then open http://127.0.0.1:8000 (docs/apps.md):

FAIRLANE_CORS_ORIGINS=http://127.0.0.1:8000,http://localhost:8000 fairlane serve
fairlane worker simulate --model demo
python examples/browser/backend.py        # needs fastapi, httpx2 and uvicorn, as Fairlane does
"""

import os
from pathlib import Path

import httpx2
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles

HERE = Path(__file__).parent
GATEWAY = os.environ.get("FAIRLANE_GATEWAY", "http://127.0.0.1:8080").rstrip("/")
HEADERS = {"Authorization": f"Bearer {os.environ['FAIRLANE_KEY']}"} if "FAIRLANE_KEY" in os.environ else {}
app = FastAPI()


@app.post("/ask")
async def ask(request: Request) -> Response:
    """Return the link to the answer's stream. `async`: do not wait. `stream`: the events have the output as it arrives."""
    messages = [{"role": "user", "content": (await request.body()).decode()}]
    task = {"model": os.environ.get("MODEL", "demo"), "async": True, "stream": True, "messages": messages}
    async with httpx2.AsyncClient(timeout=20) as gateway:
        answer = await gateway.post(f"{GATEWAY}/api/openai", json=task, headers=HEADERS)
    answered = answer.json()  # or an error: no worker, queue full …
    return JSONResponse(answered if answer.is_error else {"streamUrl": GATEWAY + answered["streamUrl"]})


@app.get("/fairlane.js")
async def client() -> Response:
    """Redirect to the gateway's client. A copy of web/client/fairlane.js works, too."""
    return RedirectResponse(f"{GATEWAY}/static/client/fairlane.js")


app.mount("/react", StaticFiles(directory=HERE / "react", html=True))
app.mount("/", StaticFiles(directory=HERE / "page", html=True))

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
