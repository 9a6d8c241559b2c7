"""Helpers of the tests: real servers that a test starts, uses and ends."""
