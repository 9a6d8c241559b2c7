"""What outlives Redis, in SQL: SQLite in the data directory, or PostgreSQL."""
