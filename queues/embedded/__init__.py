"""The private Redis of a gateway that is given none."""
