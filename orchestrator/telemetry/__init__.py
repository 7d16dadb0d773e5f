"""The service's metrics, traces and log."""
