"""Several Redis servers behind one gateway."""
