"""Callers and workers, their credentials and their limits."""
