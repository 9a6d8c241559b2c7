"""One event log per task: written coalesced, read by replay and tail, shown to each client as a fold over it."""
