"""Run attempts as Indexed Jobs. Needs rights in one namespace and installs nothing in the cluster."""
