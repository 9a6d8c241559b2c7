"""A fault drill: the servers of a model break in every way, and clients must notice nothing but the name of another model.

`make drill` (CALLS= for each fault) starts a Redis and two gateways as processes. Workers of the SDK with the OpenAI adapter
stand before providers (`provider.py`): real HTTP servers on loopback that the drill breaks, one way after the other
(`faults.py`). Clients use openai-python (`callers.py`). After each fault the drill repairs the provider and waits until the
model serves every call again without help.
"""
