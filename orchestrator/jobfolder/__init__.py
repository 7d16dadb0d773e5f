"""Every access of the service to a job's folder. Nothing else in the service opens a path there."""
