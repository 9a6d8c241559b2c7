"""Records: from the outbox in Redis to SQL, and their reports."""
