"""Structured output: what schemas are taken, and whether finished texts match them. Looked at in a child process, with limits."""
