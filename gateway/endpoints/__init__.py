"""Interfaces of other people that are called in turn: what is allowed of them. Pure."""
