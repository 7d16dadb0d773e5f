"""A fake cluster whose agents write the files of real ones: for tests that drive the supervisor through every fault."""
