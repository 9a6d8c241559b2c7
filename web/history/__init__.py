"""What happened in the last minutes to days, of all replicas together."""
