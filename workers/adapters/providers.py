"""Providers by name: where each is, what it speaks, and what is peculiar to it.

Small on purpose: the command line reads it; what an adapter needs is imported when one is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from fairlane.workers.adapters.quirks import OLD_BOUND, Quirks, merged
from fairlane.workers.tasktypes import MEDIA, TEXT

if TYPE_CHECKING:
    from fairlane.workers.adapters.dialects.base import Dialect
    from fairlane.workers.adapters.upstream import Upstream


@dataclass(frozen=True)
class Provider:
    """`key_env` names the environment variable with the key; where it `needs_key`, its own `base_url` is not asked without.
    `quirks` of its server (`quirks.py`). `example` is a model of it.
    """

    name: str
    title: str
    base_url: str
    key_env: str
    example: str
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
        known = OLD_BOUND if self.name == "openai" and urlsplit(base_url).hostname != OPENAI else self.quirks
        return Upstream(
            self._dialect(), models=models, base_url=base_url, quirks=merged(known, quirks or {}), **options
        )

    def _dialect(self) -> Dialect:
        if self.dialect == "anthropic":
            from fairlane.workers.adapters.dialects.anthropic import AnthropicDialect  # noqa: PLC0415

            return AnthropicDialect()
        if self.dialect == "gemini":
            from fairlane.workers.adapters.dialects.gemini import GeminiDialect  # noqa: PLC0415

            return GeminiDialect()
        from fairlane.workers.adapters.dialects.openai import OpenAIDialect  # noqa: PLC0415

        return OpenAIDialect()


OPENAI = "api.openai.com"
"""Knows the newer name of the bound for all of its models, and some of them reject the older one."""
_OLD = {**OLD_BOUND, "developer": "system"}

PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            *("openai", "OpenAI", f"https://{OPENAI}/v1", "OPENAI_API_KEY", "gpt-5-mini"),
            quirks={"max_tokens": "max_completion_tokens"},
        ),
        Provider(
            *("deepseek", "DeepSeek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek-chat"),
            quirks=_OLD,
        ),
        Provider(
            *(
                "glm",
                "Zhipu's GLM",
                "https://open.bigmodel.cn/api/paas/v4",
                "ZHIPUAI_API_KEY",
                "glm-4.5-flash",
            ),
            quirks=_OLD,
        ),
        Provider(*("vllm", "vLLM", "http://localhost:8000/v1", "VLLM_API_KEY", "qwen3-32b"), needs_key=False),
        Provider(
            *("ollama", "Ollama", "http://localhost:11434/v1", "OLLAMA_API_KEY", "llama3.2"),
            needs_key=False,
            quirks=_OLD,
        ),
        Provider(
            *(
                "anthropic",
                "Anthropic",
                "https://api.anthropic.com/v1",
                "ANTHROPIC_API_KEY",
                "claude-sonnet-5",
            ),
            dialect="anthropic",
        ),
        Provider(
            *(
                "gemini",
                "Google's Gemini",
                "https://generativelanguage.googleapis.com/v1beta",
                "GEMINI_API_KEY",
            ),
            example="gemini-2.5-flash",
            dialect="gemini",
        ),
    )
}
