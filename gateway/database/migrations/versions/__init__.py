"""One file per migration, named by its revision."""
