"""Endpoints as operators see and change them while gateways run: use cases, their table, and each process's memory of it."""
