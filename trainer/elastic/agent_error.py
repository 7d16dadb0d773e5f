"""Classify an exception that ends an agent: a failure of the machine, or code that cannot run here at all."""

from __future__ import annotations

import platform
import sys
import traceback

from trainer.contract.failure import Failure, FailureKind

# Another attempt would raise these again, because this code or its torch is the wrong one. An OSError, or a
# RuntimeError (the base of torch's own errors), may not occur again.
_OF_THE_CODE = (ImportError, TypeError, AttributeError, NameError, SyntaxError, NotImplementedError)
_MOST_OF_A_MESSAGE, _MOST_OF_A_TRACEBACK = 300, 16 * 1024  # characters


def explain_exception(error: Exception, *, began: bool) -> Failure:
    """`began`: a worker had started before, which proves that the agent can run here."""
    summary = f"{type(error).__name__}: {' '.join(str(error).split())[:_MOST_OF_A_MESSAGE]}"
    text = "".join(traceback.format_exception(error))[-_MOST_OF_A_TRACEBACK:]
    if began or not isinstance(error, _OF_THE_CODE):
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=f"the agent failed with {summary}", traceback=text)
    return Failure(
        kind=FailureKind.LAUNCH, message=f"the agent cannot start with {_versions()}: {summary}", traceback=text
    )


def _versions() -> str:
    torch = getattr(sys.modules.get("torch"), "__version__", None)
    python = f"Python {platform.python_version()}"
    return python if torch is None else f"{python} and torch {torch}"
