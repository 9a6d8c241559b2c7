"""Providers by name: where each is, what it speaks, and what is peculiar to it.

Small on purpose: the command line reads it; what an adapter needs is imported when one is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fairlane.workers.tasktypes import MEDIA, TEXT

if TYPE_CHECKING:
    from fairlane.workers.adapters.dialects.base import Dialect
    from fairlane.workers.adapters.upstream import Upstream


@dataclass(frozen=True)
class Provider:
    """`key_env` names the environment variable with the key; where it `needs_key`, its own `base_url` is not asked without.
    `renamed` and `plain_roles`: see `OpenAIDialect`. `example` is a model of it.
    """

    name: str
    title: str
    base_url: str
    key_env: str
    example: str
    dialect: Literal["openai", "anthropic", "gemini"] = "openai"
    needs_key: bool = True
    renamed: Mapping[str, str] = field(default_factory=dict)
    plain_roles: bool = False

    @property
    def task_types(self) -> tuple[str, ...]:
        """Those that it may be asked for."""
        return (*TEXT, *MEDIA) if self.dialect == "openai" else TEXT[:1]

    def adapter(
        self, *, models: Iterable[str] | Mapping[str, str], base_url: str | None = None, **options: Any
    ) -> Upstream:
        """An adapter for this provider; `options` as `Upstream` takes them. Raise `ValueError` for a bad URL or key."""
        from fairlane.workers.adapters.upstream import Upstream  # noqa: PLC0415 (it takes a while)

        return Upstream(self._dialect(), models=models, base_url=base_url or self.base_url, **options)

    def _dialect(self) -> Dialect:
        if self.dialect == "anthropic":
            from fairlane.workers.adapters.dialects.anthropic import AnthropicDialect  # noqa: PLC0415

            return AnthropicDialect()
        if self.dialect == "gemini":
            from fairlane.workers.adapters.dialects.gemini import GeminiDialect  # noqa: PLC0415

            return GeminiDialect()
        from fairlane.workers.adapters.dialects.openai import OpenAIDialect  # noqa: PLC0415

        return OpenAIDialect(renamed=self.renamed, plain_roles=self.plain_roles)


_ONE_NAME = {"max_completion_tokens": "max_tokens"}
"""Those that know OpenAI's older name only, and would leave the newer one, and so the bound, unread."""

PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider("openai", "OpenAI", "https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-5-mini"),
        Provider(
            *("deepseek", "DeepSeek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek-chat"),
            renamed=_ONE_NAME,
            plain_roles=True,
        ),
        Provider(
            *(
                "glm",
                "Zhipu's GLM",
                "https://open.bigmodel.cn/api/paas/v4",
                "ZHIPUAI_API_KEY",
                "glm-4.5-flash",
            ),
            renamed=_ONE_NAME,
            plain_roles=True,
        ),
        Provider(*("vllm", "vLLM", "http://localhost:8000/v1", "VLLM_API_KEY", "qwen3-32b"), needs_key=False),
        Provider(
            *("ollama", "Ollama", "http://localhost:11434/v1", "OLLAMA_API_KEY", "llama3.2"),
            needs_key=False,
            renamed=_ONE_NAME,
            plain_roles=True,
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
