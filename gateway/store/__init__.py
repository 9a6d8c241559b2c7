"""What a gateway keeps with its store: the connection, the settings in force, and what others send it there."""
