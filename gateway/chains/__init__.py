"""Chains: several stages' work under one task id. What one is planned as, and what each of its stages is given."""
