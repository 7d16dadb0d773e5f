"""Requests to the members of an array, each judged as a request to the job itself."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.api.deps import Services
from orchestrator.commands.job_commands import Commands
from orchestrator.domain.access.identity import Principal, Role
from orchestrator.domain.access.route_roles import Verdict, find_rule, judge
from orchestrator.domain.errors import Conflict, NotFound
from orchestrator.domain.job.job import JobState
from orchestrator.queries.arrays import find_array
from orchestrator.wire.array_views import ArrayView, MemberView
from orchestrator.wire.job_requests import RetryRequest

_REQUESTS: dict[str, tuple[Callable[[MemberView], bool], Callable[[Commands, str], object]]] = {
    "cancel": (lambda member: not member.ended, lambda commands, job_id: commands.cancel(job_id)),
    "retry": (
        lambda member: member.ended and member.state is JobState.FAILED,
        lambda commands, job_id: commands.retry(job_id, RetryRequest()),
    ),
}


def request_members(services: Services, caller: Principal, array_id: str, verb: str) -> ArrayView:
    """Cancel the members that have not ended ("cancel"), or retry those that failed ("retry").

    Returns the array, with why some members were not reached. Raises NotFound.
    """
    applies, request = _REQUESTS[verb]
    projects = caller.projects(Role.VIEWER)
    chosen = [member.job_id for member in find_array(services.queries, array_id, projects).members if applies(member)]
    rule = find_rule("POST", f"/api/v1/jobs/{{job_id}}/{verb}")
    places, commands = services.identity.places.find_all(chosen), services.commands.acting(caller)
    refused = []
    for job_id in chosen:
        if judge(rule, caller, job=places.get(job_id)) is not Verdict.ALLOWED:
            refused.append(f"you may not {verb} job {job_id}")
            continue
        try:
            request(commands, job_id)
        except (Conflict, NotFound) as error:
            refused.append(str(error))
    return find_array(services.queries, array_id, projects).model_copy(update={"refused": refused})
