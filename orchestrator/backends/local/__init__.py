"""This machine as a cluster: detached agents, found again after a restart of the service. Linux (proc(5))."""
