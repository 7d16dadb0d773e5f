"""The health of workers and node, as their agent sees it."""
