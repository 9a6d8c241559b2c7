"""Concurrency limits that follow the time to the first output."""
