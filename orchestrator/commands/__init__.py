"""What is asked of the service, and every check before it is accepted. Writes what is desired, never a status."""
