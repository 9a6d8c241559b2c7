"""Features of attempts: what a task without them does not run. `registered.py` lists them."""
