"""Every client surface as a pure function of one task's event log: no clock, no Redis, no sockets."""
