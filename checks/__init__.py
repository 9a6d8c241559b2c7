"""Checks of `make check` that no other tool has: plain English, and sizes that may only shrink."""
