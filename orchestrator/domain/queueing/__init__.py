"""Admission of queued jobs, and the lease of a cluster."""
