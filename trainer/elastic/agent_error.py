"""Classify an exception that ends an agent: a failure of the machine, or code that cannot run here at all."""

from __future__ import annotations

import platform
import sys
import traceback

from trainer.contract.failure import Failure, FailureKind
from trainer.contract.words import cut_traceback

# Another attempt would raise these again, because the versions of this code and of torch do not fit. An OSError or a
# RuntimeError (the base of torch's own errors) may not occur again.
_CODE_ERRORS = (ImportError, TypeError, AttributeError, NameError, SyntaxError, NotImplementedError)
_MESSAGE_LIMIT = 300  # characters


def explain_exception(error: Exception, *, began: bool) -> Failure:
    """`began` is whether a worker had started before. If so, the agent can run here."""
    summary = f"{type(error).__name__}: {' '.join(str(error).split())[:_MESSAGE_LIMIT]}"
    text = cut_traceback("".join(traceback.format_exception(error)))
    if began or not isinstance(error, _CODE_ERRORS):
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=f"the agent failed with {summary}", traceback=text)
    return Failure(
        kind=FailureKind.LAUNCH, message=f"the agent cannot start with {_versions()}: {summary}", traceback=text
    )


def _versions() -> str:
    torch = getattr(sys.modules.get("torch"), "__version__", None)
    python = f"Python {platform.python_version()}"
    return python if torch is None else f"{python} and torch {torch}"
