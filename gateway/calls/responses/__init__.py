"""OpenAI's Responses requests as chat requests. Pure. What goes where is told in docs/responses.md."""
