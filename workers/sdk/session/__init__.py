"""The worker's side of a connection: frames in, frames out, and results until the gateway has them. Pure."""
