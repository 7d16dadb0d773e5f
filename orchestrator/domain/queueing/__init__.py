"""Which job may start now, and which process supervises a cluster."""
