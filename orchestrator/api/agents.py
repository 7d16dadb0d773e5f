"""Whether a report comes from its attempt's agent: asked before its body is read, which may be megabytes.

A report names its attempt in a header. Agents of release 0.1.0 send none: theirs is found in the first bytes of the
body, which are searched and not parsed.
"""

from __future__ import annotations

import re

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from orchestrator.api.body_stream import read_head
from orchestrator.api.deps import Services
from orchestrator.api.guesses import counting_guesses, require_few_guesses, require_pace
from orchestrator.domain.attempt import AttemptKey
from orchestrator.domain.errors import Unauthenticated
from orchestrator.domain.worker_token import looks_like_worker_token
from trainer.contract import env

_HEAD_BYTES = 1024  # where an old agent's report names its attempt: first of all
_NOT_ITS_TOKEN = "a report needs the token of the attempt that it is about"
_REQUESTS = "one agent may not send so many reports; come again when Retry-After says"

_JOB, _NUMBER = r"([A-Za-z0-9._-]{1,128})", r"([1-9][0-9]{0,9})"
_IN_HEADER = re.compile(f"{_JOB}/{_NUMBER}", re.ASCII)
_JOB_IN_HEAD = re.compile(rf'"job_id"\s*:\s*"{_JOB}"', re.ASCII)
_NUMBER_IN_HEAD = re.compile(rf'"attempt"\s*:\s*{_NUMBER}\s*[,}}]', re.ASCII)


async def require_agent(request: Request, services: Services, token: str) -> None:
    """Raises Unauthenticated, AttemptOver, StoreUnavailable; HttpProblem 429 for too many guesses or reports."""
    workers, pace = services.identity.workers, services.identity.pace
    if not workers.knows(token):
        require_few_guesses(request, services)
    with counting_guesses(request, services):
        key = await _named_attempt(request, token)
        known = workers.recall(key)
        stay = (await run_in_threadpool(workers.find, key) if known is None else known).value
        workers.require(token, key, stay)
    if pace is not None:
        require_pace(pace.take(f"agent {key}"), _REQUESTS)
    workers.require_not_over(key, stay)
    request.state.attempt = key


def require_same_attempt(request: Request, services: Services, key: AttemptKey) -> None:
    """That a report is about the attempt whose token it has. Raises Unauthenticated."""
    with counting_guesses(request, services):
        if getattr(request.state, "attempt", key) != key:  # an open service asks for no token
            raise Unauthenticated(_NOT_ITS_TOKEN)


async def _named_attempt(request: Request, token: str) -> AttemptKey:
    if not looks_like_worker_token(token):
        raise Unauthenticated(_NOT_ITS_TOKEN)
    given = request.headers.get(env.ATTEMPT_HEADER)
    key = parse_head(await read_head(request, _HEAD_BYTES)) if given is None else parse_header(given)
    if key is None:
        raise Unauthenticated(f"the header {env.ATTEMPT_HEADER} must name the report's attempt as `JOB/NUMBER`")
    return key


def parse_header(given: str) -> AttemptKey | None:
    found = _IN_HEADER.fullmatch(given)
    return None if found is None else AttemptKey(found[1], int(found[2]))


def parse_head(raw: bytes) -> AttemptKey | None:
    """The attempt that a report names in its first bytes."""
    head = raw[:_HEAD_BYTES].decode("latin-1")
    job, number = _JOB_IN_HEAD.search(head), _NUMBER_IN_HEAD.search(head)
    return None if job is None or number is None else AttemptKey(job[1], int(number[1]))
