"""What workers printed: found, cut, masked, followed."""
