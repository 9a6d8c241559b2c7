"""What is read of the whole store, of all replicas together."""
