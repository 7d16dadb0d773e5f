"""Times in requests: RFC 3339 only, as OpenAPI's `date-time` says.

Pydantic alone would read a number as seconds since 1970, or as milliseconds if it is large, and a date as midnight.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)


def _parse_text(given: object) -> object:
    if isinstance(given, datetime):  # from our own client
        return given
    if not isinstance(given, str) or _RFC_3339.fullmatch(given) is None:
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z")
    return given


def _to_utc(given: datetime) -> datetime:
    try:
        return given.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be a time between the years 1 and 9999 in UTC") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_parse_text), AfterValidator(_to_utc)]
