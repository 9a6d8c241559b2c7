"""Ready-made handlers.

OpenAIAdapter      passes tasks to an OpenAI-compatible server
SimulateAdapter    pretends to be a model of a given speed
echo               answers with what was asked
"""

from fairlane.workers.adapters.echo import echo
from fairlane.workers.adapters.openai import Limits, OpenAIAdapter
from fairlane.workers.adapters.simulate import Accident, SimulateAdapter, Simulation

__all__ = ["Accident", "Limits", "OpenAIAdapter", "SimulateAdapter", "Simulation", "echo"]
