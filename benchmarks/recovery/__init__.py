"""Time the recovery from killed workers. See __main__.py."""
