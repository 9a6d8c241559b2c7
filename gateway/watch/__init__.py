"""Monitors of the gateway itself, of Redis and of the other replicas."""
