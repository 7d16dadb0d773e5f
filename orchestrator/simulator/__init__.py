"""The simulator: weeks of a cluster's life in seconds, under the service's own policy and supervisor. No files."""
