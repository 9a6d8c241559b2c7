"""Stored results of async tasks in SQL."""
