"""Ready-made handlers.

PROVIDERS          OpenAI, DeepSeek, GLM, vLLM, Ollama, Anthropic, Gemini: `PROVIDERS["gemini"].adapter(models=[…], api_key=…)`
SimulateAdapter    pretends to be a model of a given speed, for tasks of the types SIMULATED
echo               answers with what was asked

`endpoints/http.py` has the one that makes the calls of endpoints.
"""

from fairlane.workers.adapters.echo import echo
from fairlane.workers.adapters.providers import PROVIDERS
from fairlane.workers.adapters.simulate import SIMULATED, Accident, SimulateAdapter, Simulation

__all__ = ["PROVIDERS", "SIMULATED", "Accident", "SimulateAdapter", "Simulation", "echo"]
