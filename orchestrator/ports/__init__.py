"""The doors between the core and the world. Small Protocols; adapters implement them, bootstrap alone names those."""
