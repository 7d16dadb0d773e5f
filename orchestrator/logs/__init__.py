"""Find, cut, mask and follow workers' output."""
