"""What callers may name instead of a model: routes and templates. Pure."""
