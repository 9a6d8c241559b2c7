"""Responses that are kept in SQL: what was asked, and when their tasks have ended the whole of their event logs. Until then, and
for a while longer, Redis has the log: whoever reads one folds the same events, wherever they lie."""
