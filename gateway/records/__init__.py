"""What has happened, from the outbox in Redis to SQL, and what is told of it."""
