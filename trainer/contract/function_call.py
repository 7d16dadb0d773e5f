"""A Python function and its arguments as one text, for the module that calls it on each rank.

A person's own client packs the call, and only that person's own job unpacks it. The service never does.
"""

from __future__ import annotations

import base64
import pickle
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import cloudpickle

MODULE = "trainer.script.function"  # runs a packed call: `python -m MODULE TEXT`
MAX_TEXT = 32_000  # characters; one argument of a job may have 32,768
MAX_VALUE = 32_000  # characters of JSON
VALUE = "value"  # the key of the return value, as JSON, in the evidence of its event


class FunctionCall(NamedTuple):
    function: Callable[..., object]
    args: Sequence[object]
    kwargs: Mapping[str, object]


def pack(call: FunctionCall) -> str:
    """Return the call as text. Raises ValueError if it is too long or cannot be pickled.

    Functions of `__main__` are packed with their code, functions of other modules by name.
    """
    try:
        pickled = cloudpickle.dumps(tuple(call), protocol=pickle.DEFAULT_PROTOCOL)
    except Exception as error:  # an edge: pickling runs code of the arguments
        raise ValueError(f"the function or an argument cannot be pickled: {error}") from error
    text = f"{_python()}:{base64.b64encode(zlib.compress(pickled, 9)).decode()}"
    if len(text) > MAX_TEXT:
        raise ValueError(
            f"the function and its arguments take {len(text)} characters, at most {MAX_TEXT}; "
            "move code into a module of the workdir, and data into a file"
        )
    return text


def unpack(text: str) -> FunctionCall:
    """Run only on what the job's own owner packed. Raises ValueError if another version of Python packed it."""
    version, _, encoded = text.partition(":")
    if version != _python():
        raise ValueError(f"the function is from Python {version}, this is Python {_python()}; use the same version")
    function, args, kwargs = pickle.loads(zlib.decompress(base64.b64decode(encoded)))
    return FunctionCall(function, args, kwargs)


def _python() -> str:
    """The version of Python that decides whether code can be unpickled, such as "3.12"."""
    return ".".join(map(str, sys.version_info[:2]))
