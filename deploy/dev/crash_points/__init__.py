"""The crash-point matrix: a real service is struck before and after each of its effects; all must end as it should.

    python -m deploy.dev.crash_points            # every point, both sides, three rounds
    python -m deploy.dev.crash_points --list     # the points alone

`points` wraps and counts (in the service's process), `launcher` runs a service so, `lean_agent` is an agent without
torch, `cell` plays one cell of the matrix, `verdict` judges it, `__main__` plays them all.
"""
