"""Usage records, their sums and reports."""
