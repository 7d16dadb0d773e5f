"""What the service tells of itself: metrics, traces, its own log."""
