"""What may stand in a log: few lines of one kind, and of a stranger's sentence no more than operators may see. Pure."""
