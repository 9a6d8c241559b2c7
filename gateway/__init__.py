"""The gateway process: its HTTP surfaces, settings, callers, command line and life."""
