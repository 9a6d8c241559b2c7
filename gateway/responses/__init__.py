"""Stored responses in SQL: their input, and after their tasks have ended their whole event logs. Until then, and for a while
longer, Redis has the log. Readers fold the same events from either."""
