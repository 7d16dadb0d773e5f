"""Check that a report comes from an agent of its attempt, before its body of up to megabytes is read.

A report names its attempt in a header. Agents of release 0.1.0 do not send that header. The first bytes of their body
are searched for the attempt, but not parsed.
"""

from __future__ import annotations

import re

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from orchestrator.api.body_stream import read_head
from orchestrator.api.deps import Services
from orchestrator.api.guesses import counting_guesses, require_few_guesses, require_rate
from orchestrator.domain.errors import Unauthenticated
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.worker_token import looks_like_worker_token
from orchestrator.identity.workers import NOT_ITS_TOKEN
from trainer.contract import env

_HEAD_BYTES = 1024  # an old agent's report begins with its attempt
_REQUESTS = "the agent sends too many reports; retry after the time in Retry-After"

_MOST_NUMBER = 2**31 - 1  # as in a report's body; PostgreSQL rejects a greater number in a query
_JOB, _NUMBER = r"([A-Za-z0-9._-]{1,128})", r"([1-9][0-9]{0,9})"
_IN_HEADER = re.compile(f"{_JOB}/{_NUMBER}", re.ASCII)
_JOB_IN_HEAD = re.compile(rf'"job_id"\s*:\s*"{_JOB}"', re.ASCII)
_NUMBER_IN_HEAD = re.compile(rf'"attempt"\s*:\s*{_NUMBER}\s*[,}}]', re.ASCII)


async def require_agent(request: Request, services: Services, token: str) -> None:
    """Check a report's token and keep its attempt in `request.state.attempt`.

    Raises Unauthenticated, AttemptOver, StoreUnavailable; HttpProblem 429 for too many failed attempts or reports.
    """
    workers = services.identity.workers
    if not workers.knows(token):
        require_few_guesses(request, services)
    with counting_guesses(request, services):
        key = await _named_attempt(request, token)
        known = workers.recall(key)
        facts = (await run_in_threadpool(workers.find, key) if known is None else known).value
        workers.require(token, key, facts)
    require_rate(services.identity.rate_limit.take(f"agent {key}"), _REQUESTS)
    workers.require_not_over(key, facts)
    request.state.attempt = key


def require_same_attempt(request: Request, services: Services, key: AttemptKey) -> None:
    """Check that the body of a report names the attempt of its token. Raises Unauthenticated."""
    with counting_guesses(request, services):
        if getattr(request.state, "attempt", key) != key:  # an open service asks for no token
            raise Unauthenticated(NOT_ITS_TOKEN)


async def _named_attempt(request: Request, token: str) -> AttemptKey:
    if not looks_like_worker_token(token):
        raise Unauthenticated(NOT_ITS_TOKEN)
    given = request.headers.get(env.ATTEMPT_HEADER)
    key = find_attempt(await read_head(request, _HEAD_BYTES)) if given is None else parse_attempt(given)
    if key is None:
        raise Unauthenticated(f"the header {env.ATTEMPT_HEADER} must name the report's attempt as `JOB/NUMBER`")
    return key


def parse_attempt(given: str) -> AttemptKey | None:
    """Return the attempt of a header's value, `JOB/NUMBER`. None for any other text."""
    found = _IN_HEADER.fullmatch(given)
    return None if found is None else _key(found[1], found[2])


def find_attempt(raw: bytes) -> AttemptKey | None:
    """Search the first bytes of a report for its attempt."""
    head = raw[:_HEAD_BYTES].decode("latin-1")
    job, number = _JOB_IN_HEAD.search(head), _NUMBER_IN_HEAD.search(head)
    return None if job is None or number is None else _key(job[1], number[1])


def _key(job: str, number: str) -> AttemptKey | None:
    return AttemptKey(job, int(number)) if int(number) <= _MOST_NUMBER else None
