"""The soak: real training jobs under random faults, on two services and PostgreSQL.

    python -m deploy.dev.soak                      # 100 faults in about half an hour
    python -m deploy.dev.soak --short              # a dozen in two minutes

`stage` is what runs, `faults` what strikes it, `verdict` what must hold at the end, `__main__` the play.
"""
