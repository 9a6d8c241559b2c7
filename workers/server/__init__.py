"""The gateway's side of the worker protocol: connected workers, their slots, and the attempts that run on them."""
