"""Limits on the silence of a model that follow how long its queue is."""
