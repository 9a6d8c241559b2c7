"""Prices of tasks, and quotas that pay for them."""
