"""Wire the service. This is the only package that names adapters. Start with service.py."""
