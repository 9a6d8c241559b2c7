"""The worker's side of a connection: what comes, what goes, and results until the gateway has them. Pure."""
