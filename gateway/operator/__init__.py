"""What operators see and do: state, search, audit record, changes, draining. Knows nothing of HTTP."""
