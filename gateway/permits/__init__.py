"""Permits to call an endpoint oneself: they wait in its line like any task, and a proxy in front of it lets each in once."""
