"""The failure behind an exception that ends an agent: one of its machine, or of code that cannot run here at all."""

from __future__ import annotations

import platform
import sys
import traceback

from trainer.contract.failure import Failure, FailureKind

# Another attempt raises these again, because this code, or the torch that it finds, is the wrong one. It may not meet
# an OSError again, or a RuntimeError, which is the base of torch's own errors.
_OF_THE_CODE = (ImportError, TypeError, AttributeError, NameError, SyntaxError, NotImplementedError)
_MOST_OF_A_MESSAGE, _MOST_OF_A_TRACEBACK = 300, 16 * 1024  # characters


def explain_exception(error: Exception, *, began: bool) -> Failure:
    """`began`: a worker had begun by then, so that the agent can run here."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:_MOST_OF_A_MESSAGE]}"
    text = "".join(traceback.format_exception(error))[-_MOST_OF_A_TRACEBACK:]
    if began or not isinstance(error, _OF_THE_CODE):
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=f"the agent ended by {said}", traceback=text)
    return Failure(
        kind=FailureKind.LAUNCH, message=f"the agent cannot start with {_versions()}: {said}", traceback=text
    )


def _versions() -> str:
    torch = getattr(sys.modules.get("torch"), "__version__", None)
    python = f"Python {platform.python_version()}"
    return python if torch is None else f"{python} and torch {torch}"
