"""The gateway's side of Redis: checks of a connection, the settings in effect, and messages of other replicas."""
