"""A fake cluster whose agents write real files, to drive the supervisor through every fault."""
