"""The audit log of operators' actions, and counts of rejected calls."""
