"""The tests in the oldest, the pinned and the newest environments that are supported."""
