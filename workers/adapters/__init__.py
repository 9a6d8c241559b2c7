"""Ready-made handlers.

PROVIDERS          OpenAI, DeepSeek, GLM, vLLM, Ollama, Anthropic, Gemini: `PROVIDERS["gemini"].adapter(models=[…], api_key=…)`
OpenAIAdapter      passes tasks to an OpenAI-compatible server
HttpAdapter        makes the calls of endpoints
SimulateAdapter    pretends to be a model of a given speed, for tasks of the types SIMULATED
echo               answers with what was asked
"""

from typing import TYPE_CHECKING, Any

from fairlane.workers.adapters.echo import echo
from fairlane.workers.adapters.providers import PROVIDERS
from fairlane.workers.adapters.simulate import SIMULATED, Accident, SimulateAdapter, Simulation

if TYPE_CHECKING:
    from fairlane.workers.adapters.endpoints.http import HttpAdapter
    from fairlane.workers.adapters.openai import Limits, OpenAIAdapter

__all__ = [
    "PROVIDERS",
    "SIMULATED",
    "Accident",
    "HttpAdapter",
    "Limits",
    "OpenAIAdapter",
    "SimulateAdapter",
    "Simulation",
    "echo",
]


def __getattr__(name: str) -> Any:
    """What needs an HTTP client is imported when it is used: that takes longer than all the rest."""
    if name in ("Limits", "OpenAIAdapter"):
        from fairlane.workers.adapters import openai  # noqa: PLC0415

        return getattr(openai, name)
    if name == "HttpAdapter":
        from fairlane.workers.adapters.endpoints.http import HttpAdapter  # noqa: PLC0415

        return HttpAdapter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
