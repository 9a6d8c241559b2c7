"""Carries out tasks of type `http`: calls of endpoints, which are any HTTP interfaces behind lines of their own."""
