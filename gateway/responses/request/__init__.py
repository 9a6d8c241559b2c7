"""OpenAI's Responses requests as chat requests. Pure. docs/responses.md has the table."""
