"""Requests and answers as pydantic models: what callers may rely on, one file per surface. FastAPI makes the document of them.

Answers are built without them, and a test compares what is answered with the document. What the gateway hands to workers without
looking at it is not described: a member that is not named may be any.
"""
