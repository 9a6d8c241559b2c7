"""Chains: several stages under one task id: their plans, and the request of each stage."""
