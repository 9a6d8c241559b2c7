"""Measures a gateway from outside: `python -m bench` from the repository's root. What is measured, and how: bench/README.md."""
