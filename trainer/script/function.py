"""Call a submitted function on this rank: `python -m trainer.script.function TEXT`.

Rank 0 reports the return value as an event, for the client that submitted the function.
"""

from __future__ import annotations

import json
import os
import sys

from trainer.contract.env import parse_place
from trainer.contract.exit_record import EventKind
from trainer.contract.function_call import MAX_VALUE, VALUE, unpack
from trainer.worker.heartbeat import Heartbeat


def main() -> None:
    try:
        call = unpack(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    value = call.function(*call.args, **call.kwargs)
    place = parse_place(os.environ)
    if place.rank == 0:
        text, sentence = _render(value)
        evidence: dict[str, object] = {} if text is None else {VALUE: text}
        Heartbeat(place, total_steps=None).tell(EventKind.FUNCTION_RETURNED, sentence, evidence)


def _render(value: object) -> tuple[str | None, str]:
    """Return the value as JSON, or None if it has no short JSON, and a sentence for the job's owner."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        return None, f"the function returned on rank 0; its value is not JSON: {error}"
    if len(text) > MAX_VALUE:
        return None, f"the function returned on rank 0; its value takes {len(text)} characters, at most {MAX_VALUE}"
    return text, "the function returned on rank 0"


if __name__ == "__main__":
    main()
