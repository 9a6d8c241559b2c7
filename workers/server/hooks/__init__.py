"""Features of attempts: what a task without them does not run. `features.py` lists them."""
