"""Requests, bodies and streams of the HTTP calls."""
