"""The providers that workers pass tasks to, by the names that a configuration's `upstreams` know. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provider:
    """How a worker is started for one."""

    command: str
    """Of `fairlane worker`."""
    base_url: str
    """Where it is, if nobody says."""
    key_env: str | None = None
    """The variable that usually holds the key; None: at that address it wants none."""


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "deepseek": Provider("openai", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "glm": Provider("openai", "https://open.bigmodel.cn/api/paas/v4", "GLM_API_KEY"),
    "vllm": Provider("openai", "http://localhost:8000/v1"),
    "ollama": Provider("openai", "http://localhost:11434/v1"),
}
"""Each can be run by a command that there is."""
