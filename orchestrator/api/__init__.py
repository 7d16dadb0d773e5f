"""HTTP: `/api/v1`, health and metrics."""
