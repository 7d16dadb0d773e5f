"""The pages with many jobs, long jobs and many who look. See __main__.py."""
