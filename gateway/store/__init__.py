"""What a gateway keeps with its store: the connection, the settings in effect, and what others send it there."""
