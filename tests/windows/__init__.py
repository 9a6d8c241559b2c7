"""Whether sliding-window limits hold, measured at the target: an HTTP server that notes when each request arrived.

`make windows` (SECONDS= to measure) starts a Redis, two gateways, a worker at each, and the target (`target.py`), all as
processes. 500 clients of six users, at both gateways, call again as soon as they have their answer, so tasks always wait.
"""
