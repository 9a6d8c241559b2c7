"""A fault drill: a model's servers break in every way, and callers must notice nothing but another model's name.

`make drill` (or `python -m tests.drill --calls 400`) starts a Redis and two gateways as processes of their own. Workers of the
SDK with the OpenAI adapter stand in front of providers (`provider.py`): real HTTP servers on loopback that the drill breaks, one
way after the other (`faults.py`). Callers use openai-python (`callers.py`). After each fault its provider is well again, and the
drill waits until the primary model has everything again, which nobody helps it to.

`run.py` says what held, fault by fault: every call answered once and whole, by one provider; few attempts at the broken one; the
first output within its limit; each answer paid once at the price of the model that gave it, and nothing else paid.

`backlog.py`: thousands of tasks wait for a model whose breaker is forced open. They go on to another one in their order, and
nobody else waits for that.
"""
