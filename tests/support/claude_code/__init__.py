"""A session of Claude Code, made by hand after what it sends: many tools, a cached system, streams, results, thoughts, counts."""

import json
from pathlib import Path
from typing import Any

SESSION: list[dict[str, Any]] = json.loads((Path(__file__).parent / "session.json").read_text())
"""Its requests in order: `what` each is, `path`, `headers` and `body`."""
MODELS = ("claude-sonnet-4-5-20250929", "claude-haiku-4-5-20251001")
