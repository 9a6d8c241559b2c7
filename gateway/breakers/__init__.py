"""Circuit breakers of upstreams."""
