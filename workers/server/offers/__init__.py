"""What workers here and at other replicas offer, and which of them can work."""
