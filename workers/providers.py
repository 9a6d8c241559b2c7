"""The providers that workers pass tasks to, by the names that a configuration's `upstreams` know. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """How a worker is started for one. `key_env` names the variable that usually holds its key; where it `needs_key`, its own
    `base_url` is not asked without.
    """

    name: str
    base_url: str
    key_env: str
    needs_key: bool = True
    command: str = "openai"
    """Of `fairlane worker`."""


PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        Provider("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        Provider("glm", "https://open.bigmodel.cn/api/paas/v4", "ZHIPUAI_API_KEY"),
        Provider("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", needs_key=False),
        Provider("ollama", "http://localhost:11434/v1", "OLLAMA_API_KEY", needs_key=False),
    )
}
"""Each can be run by a command that there is."""
