"""How a call comes in and its answer goes out: requests, bodies, streams."""
