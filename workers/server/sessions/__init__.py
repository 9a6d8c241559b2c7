"""Workers' connections: admission, and the protocol."""
