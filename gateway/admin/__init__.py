"""Use cases of operators: overview, search, audit log, changes, draining. No HTTP here."""
