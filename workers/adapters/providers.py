"""Providers by name: where each is, what it speaks, and what is peculiar to it.

Small on purpose: the command line reads it; what an adapter needs is imported when one is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from fairlane.workers.adapters.quirks import OLD_BOUND, Quirks, merged
from fairlane.workers.tasktypes import MEDIA, TEXT

if TYPE_CHECKING:
    from fairlane.workers.adapters.upstream import Upstream


@dataclass(frozen=True)
class Provider:
    """`key_env` names the environment variable with the key; where it `needs_key`, its own `base_url` is not asked without.
    `quirks` of its server (`quirks.py`).
    """

    name: str
    base_url: str
    key_env: str
    dialect: Literal["openai", "anthropic", "gemini"] = "openai"
    needs_key: bool = True
    quirks: Quirks = field(default_factory=dict)

    @property
    def task_types(self) -> tuple[str, ...]:
        """Those that it may be asked for."""
        return (*TEXT, *MEDIA) if self.dialect == "openai" else TEXT[:1]

    def adapter(
        self,
        *,
        models: Iterable[str] | Mapping[str, str],
        base_url: str | None = None,
        quirks: Quirks | None = None,
        **options: Any,
    ) -> Upstream:
        """Return an adapter for this provider; `quirks` are added to its own, `options` are those of `Upstream`. Raise
        `ValueError` for a bad URL or key."""
        from fairlane.workers.adapters.upstream import Upstream  # noqa: PLC0415 (it takes a while)

        base_url = base_url or self.base_url
        quirks = merged(self.quirks_at(base_url), quirks or {})
        module, name = _DIALECTS[self.dialect]
        dialect = getattr(importlib.import_module(f"fairlane.workers.adapters.dialects.{module}"), name)()
        return Upstream(dialect, models=models, base_url=base_url, quirks=quirks, **options)

    def quirks_at(self, base_url: str) -> Quirks:
        """Return the known quirks of the server at this URL."""
        return OLD_BOUND if self.name == "openai" and urlsplit(base_url).hostname != OPENAI else self.quirks


_DIALECTS = {
    "openai": ("openai", "OpenAIDialect"),
    "anthropic": ("anthropic.request", "AnthropicDialect"),
    "gemini": ("gemini.request", "GeminiDialect"),
}
OPENAI = "api.openai.com"
"""Knows the newer name of the bound for all of its models, and some of them reject the older one."""
_NEW, _OLD = {"max_tokens": "max_completion_tokens"}, {**OLD_BOUND, "developer": "system"}
_GEMINI = "https://generativelanguage.googleapis.com/v1beta"

PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider("openai", f"https://{OPENAI}/v1", "OPENAI_API_KEY", quirks=_NEW),
        Provider("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", quirks=_OLD),
        Provider("glm", "https://open.bigmodel.cn/api/paas/v4", "ZHIPUAI_API_KEY", quirks=_OLD),
        Provider("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", needs_key=False),
        Provider("ollama", "http://localhost:11434/v1", "OLLAMA_API_KEY", needs_key=False, quirks=_OLD),
        Provider("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "anthropic"),
        Provider("gemini", _GEMINI, "GEMINI_API_KEY", "gemini"),
    )
}
