"""Redis: the connection, the scripts, and the replica's channel."""
