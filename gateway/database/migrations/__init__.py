"""Alembic's migrations: each brings the schema from one revision to the next. One that was released is never changed."""
