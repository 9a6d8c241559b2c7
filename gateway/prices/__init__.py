"""Prices of tasks, in whole micro-credits. Pure."""
