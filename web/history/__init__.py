"""The history of the last hour, of all replicas together."""
