"""OpenAI's Responses requests as chat requests. Pure. docs/http-api.md has the table."""
