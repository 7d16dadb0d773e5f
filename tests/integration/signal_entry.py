"""Run a service that gets SIGTERM when it calls the function NAME of its process: signal_entry.py NAME."""

from __future__ import annotations

import signal
import sys
from typing import Any

from orchestrator import process
from orchestrator.settings import load_settings


def main() -> None:
    owner, name = (process._Server, "run") if sys.argv[1] == "run" else (process, sys.argv[1])
    called = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return called(*args, **kwargs)

    setattr(owner, name, interrupted)
    process.serve(load_settings())


if __name__ == "__main__":
    main()
