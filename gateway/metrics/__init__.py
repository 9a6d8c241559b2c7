"""Metrics for Prometheus: of every process of a gateway, and of the Redis and the database that they share."""
