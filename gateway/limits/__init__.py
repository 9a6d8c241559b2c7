"""Rate limits of keys and users."""
