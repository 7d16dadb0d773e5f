"""Who may do what: roles, routes, and the URLs that a job may name."""
