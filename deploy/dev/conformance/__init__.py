"""Holds a real service to its own OpenAPI document, by Schemathesis: `python -m deploy.dev.conformance --help`."""
