"""Route tables by subject."""
