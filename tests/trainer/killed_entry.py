"""The trainer, of which one rank is killed at a chosen moment of its fourth step."""

import os
import signal
import sys

from trainer.__main__ import main
from trainer.loop.step import Stepper
from trainer.parallel.trainee import Trainee
from trainer.snapshot.memory_copy import CopyWriter
from trainer.snapshot.run_state import RunState
from trainer.train import _Loop

MOMENTS = {  # before a call, or after it, once so many steps are complete
    "forward": (Trainee, "synchronize", "before", 3),
    "backward": (Trainee, "refuse_unused", "before", 3),
    "update": (Stepper, "_set_rates", "after", 3),
    "updated": (Stepper, "take", "after", 4),
    "copying": (CopyWriter, "erase", "after", 4),
    "sealed": (CopyWriter, "seal", "after", 4),
    "last": (_Loop, "_save", "before", 4),
}


def kill_in(owner, name, when, steps):
    real, attach, states = getattr(owner, name), RunState.attach, []

    def note(state, *arguments):
        states.append(state)
        attach(state, *arguments)

    def end(moment):
        if moment == when and states[0].step >= steps:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(*arguments, **options):
        end("before")
        result = real(*arguments, **options)
        end("after")
        return result

    RunState.attach = note
    setattr(owner, name, run)


if __name__ == "__main__":
    if os.environ["RANK"] == os.environ["KILLED_RANK"]:
        kill_in(*MOMENTS[os.environ["KILLED_AT"]])
    sys.exit(main())
