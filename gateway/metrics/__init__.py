"""What Prometheus reads: the metrics of every process of a gateway, and a survey of the store they share."""
