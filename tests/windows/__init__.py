"""Whether windows hold, seen from the target: an HTTP server that notes when each request came.

`make windows` (or `python -m tests.windows --seconds 60`) starts a Redis, two gateways, a worker at each, and the target
(`target.py`), all as processes of their own. 500 callers of several users, at both gateways, ask again as soon as they are
answered (`callers.py`), so that somebody always waits. `report.py` says what came of it: the most requests within any window, how
much of the windows was used, and what each user got of it.
"""
