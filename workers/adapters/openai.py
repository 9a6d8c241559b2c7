"""Runs tasks on an OpenAI-compatible upstream: vLLM, Ollama, llama.cpp, DeepSeek, GLM, OpenAI itself."""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlane.workers.adapters.clock import Limits
from fairlane.workers.adapters.dialects.openai import OpenAIDialect
from fairlane.workers.adapters.providers import PROVIDERS
from fairlane.workers.adapters.quirks import merged
from fairlane.workers.adapters.upstream import Upstream

__all__ = ["Limits", "OpenAIAdapter"]


class OpenAIAdapter(Upstream):
    """An `Upstream` that speaks OpenAI: chat completions, completions and embeddings.

    The payload goes out as it came, as far as clients can set it (`fields.py`) and the upstream takes it (`quirks.py`), except
    `model`, `stream` (as the task says) and, for a stream, `stream_options.include_usage`.
    """

    def __init__(self, *, base_url: str, models: Iterable[str] | Mapping[str, str], **options: Any) -> None:
        """Options as those of `Upstream`; the server's known quirks precede `quirks`."""
        options["quirks"] = merged(PROVIDERS["openai"].quirks_at(base_url), options.get("quirks") or {})
        super().__init__(OpenAIDialect(), base_url=base_url, models=models, **options)
