"""A hostile run: requests and frames that clients and workers should not send, at a gateway that also serves others.

`make hostile` (REQUESTS=, SEED=) starts a Redis, a gateway and workers as processes, and two attackers, each a process too:

- `wire.py`: requests as bytes, damaged in every part (`mutations.py`), over many sockets at the same time;
- `rogues.py`: workers that break the protocol (`frames.py`), and clients that give them tasks.

Meanwhile `wellbehaved.py` calls, streams and works as one should. At the end `run.py` reports what held: no answer that must not
be, no stall of the event loop, memory and sockets given back, nothing left in Redis, and right answers for the well-behaved.

The seed and n alone decide what attacker number n does, so a run can be repeated.
"""
