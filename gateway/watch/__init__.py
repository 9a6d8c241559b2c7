"""What a gateway sees of itself, of its store and of the other replicas, and says of it."""
