"""Time the loss and the return of nodes. See __main__.py."""
