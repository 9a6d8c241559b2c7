"""One event log per task: written coalesced, read by replay and tail, shown to each kind of client by a view of it."""
