"""The HTTP calls, one file per surface."""
