"""The command `fairlane`."""
