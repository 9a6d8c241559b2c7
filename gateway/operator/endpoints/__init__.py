"""Endpoints that operators add at run time: use cases, their table, and each process's copy of it."""
