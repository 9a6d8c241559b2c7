"""Quotas that pay for tasks: balances, grants and the ledger."""
