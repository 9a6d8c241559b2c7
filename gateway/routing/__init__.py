"""Names that callers use instead of a model: routes and templates. Pure."""
