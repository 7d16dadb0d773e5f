"""Kubernetes: an attempt is an Indexed Job. Needs rights in one namespace and nothing installed in the cluster."""
