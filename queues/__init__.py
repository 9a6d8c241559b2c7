"""Fair queues, leases and the event log's storage on Redis: who may run next, and what is known of each task."""
