"""A hostile run: everything that callers and workers should not send, at a real gateway, beside others who behave well.

`make hostile` (or `python -m tests.hostile --requests 200000 --seed 1`) starts a Redis, a gateway and workers as processes of
their own, and against them three attackers, each a process of its own too:

- `generated.py`: requests that schemathesis makes from the gateway's own document (`document.py`), as they are and damaged;
- `wire.py`: requests as bytes, damaged in every part (`mutations.py`), over many sockets at once;
- `rogues.py`: workers that break the protocol (`frames.py`), and callers who give them tasks.

Meanwhile `wellbehaved.py` calls, streams and works as one should, and `holds.py` holds sockets. At the end `run.py` says what
held: no answer that must not be, no stall of the event loop, memory and sockets given back, nothing left in Redis, and the
well-behaved noticed nothing.

What attacker number n does is decided by the seed and n alone, so that a run can be done again.
"""
