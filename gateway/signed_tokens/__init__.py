"""Tokens that a client's back end signs for its users."""
