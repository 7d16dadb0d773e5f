"""A world without machines: virtual time, a store in memory, a fake cluster. The same supervisor runs in it."""
