"""Admission of queued jobs, the lease of a cluster, and how services share the clusters."""
