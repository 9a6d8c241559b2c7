"""What Prometheus reads: the measures of every process of a gateway, and a survey of the store they share."""
