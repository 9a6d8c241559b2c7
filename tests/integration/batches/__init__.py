"""Batches, on gateways in this process and in others."""
