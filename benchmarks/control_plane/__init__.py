"""The control plane under load. See __main__.py."""
