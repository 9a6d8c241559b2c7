"""Permits to call an endpoint: tasks that wait in its queue. A proxy in front of the endpoint admits each permit once."""
