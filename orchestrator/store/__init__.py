"""The ports of the store on SQLite and PostgreSQL."""
