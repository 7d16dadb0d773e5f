"""All access of the service to a job's folder. No other package opens a path there."""
