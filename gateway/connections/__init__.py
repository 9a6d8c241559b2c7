"""Callers' connections: HTTP/1.1 with bounded heads, bodies and waits, and a bounded number of them."""
