"""Reads an upstream's list of models. Pure."""

import contextlib
from typing import Any

import msgspec

from fairlane.workers.protocol import ModelInfo

_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""vLLM and SGLang; OpenRouter; Groq; Mistral. llama.cpp's is `n_ctx` of the member `meta`."""
_GOOGLES_LENGTHS = ("inputTokenLimit", "outputTokenLimit")


def read_models(body: bytes) -> dict[str, ModelInfo]:
    """Return the listed models by the upstream's names. Unexpected entries are left out."""
    try:
        lists = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    rows = lists.get("data", lists.get("models"))
    models = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(name := row.get("id", row.get("name")), str):
            with contextlib.suppress(msgspec.ValidationError):
                models[name.removeprefix("models/")] = msgspec.convert(_info(row), ModelInfo)
    return models


def _info(row: dict[str, Any]) -> dict[str, Any]:
    if "id" not in row:  # Gemini's names begin with `models/`
        limits = [limit for name in _GOOGLES_LENGTHS if isinstance(limit := row.get(name), int)]
        return {"contextLength": sum(limits) or None, "ownedBy": "google"}
    meta = row["meta"] if isinstance(row.get("meta"), dict) else {}
    lengths = [row.get(name) for name in _LENGTHS] + [meta.get("n_ctx")]
    return {
        "contextLength": next((length for length in lengths if length), None),
        "ownedBy": row.get("owned_by") or None,
    }
