"""The last requests of three sessions of Codex CLI 0.171, with their texts cut short: one for each form of its tools."""

import json
from pathlib import Path
from typing import Any

SESSIONS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "session.json").read_text())
"""Bodies of `POST /v1/responses`: functions and a namespace; a custom tool and a search for tools; tools within the input."""
