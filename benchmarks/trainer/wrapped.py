"""`python -m trainer`, but ddp wraps the model on a single rank too.

There the trainer leaves the wrapper out, because training is quicker without it. Who compares wrappers on one device
has to put it on.
"""

from __future__ import annotations

from trainer import __main__ as program
from trainer.parallel import replication
from trainer.parallel import trainee as parallel


def put_wrapper_on() -> None:
    parallel.replicate = replication.wrap  # type: ignore[attr-defined]  # the name by which it is called there


def main() -> int:
    put_wrapper_on()
    return program.main()


if __name__ == "__main__":
    program.leave(main)
