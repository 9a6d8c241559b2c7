"""Endpoints: external HTTP interfaces behind a queue, and the rules of their requests. Pure."""
