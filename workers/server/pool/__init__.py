"""Workers: those connected here and their slots, and what they and those of other replicas offer."""
