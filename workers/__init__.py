"""Workers: the protocol, the SDK and adapters that a worker process uses, and the gateway's side in `server`."""
