"""What becomes of a task that was granted to a worker here, until its slot is free again."""
