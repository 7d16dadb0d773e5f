"""`python -m trainer`, but ddp also wraps the model on a single rank.

The trainer leaves the wrapper out there, because training is faster without it. A comparison on one device needs it.
"""

from __future__ import annotations

from trainer import __main__ as program
from trainer.parallel import replication
from trainer.parallel import trainee as parallel


def put_wrapper_on() -> None:
    parallel.replicate = replication.wrap  # type: ignore[attr-defined]  # the name in the module that calls it


def main() -> int:
    put_wrapper_on()
    return program.main()


if __name__ == "__main__":
    program.leave(main)
