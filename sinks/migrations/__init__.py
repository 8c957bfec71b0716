"""The record's schema, one Alembic revision after the other; `sinks/migrate.py` runs them."""
