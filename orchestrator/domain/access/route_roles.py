"""The role that each route needs, as one table. Pure.

A route without a rule is refused to everyone. What a caller may not see is answered as not found, so that nobody can
learn names by trying.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.access.identity import Principal, Role


class Scope(StrEnum):
    """The projects in which a caller needs the role."""

    PUBLIC = "public"  # none: no token is needed
    EVERYWHERE = "everywhere"  # every project
    SOMEWHERE = "somewhere"  # at least one project; the handler limits the answer to the caller's projects
    BODY = "body"  # the project that the body names; the handler checks it after it has read the body
    PROJECT = "project"  # the project in the path
    JOB = "job"  # the project of the job in the path
    WORKER = "worker"  # none; the token of the reported attempt is needed


@dataclass(frozen=True, slots=True)
class Rule:
    method: str
    path: str  # the route's path template
    scope: Scope
    role: Role | None = None
    own: Role | None = None  # enough for the job's own submitter


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """The properties of a job that decide who may access it."""

    project: str
    owner: str | None  # who submitted it. None if the caller had no name


class Verdict(StrEnum):
    ALLOWED = "allowed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"  # the caller may see it but may not do this
    HIDDEN = "hidden"  # the caller gets the answer for a name that does not exist


def _public(*paths: str) -> tuple[Rule, ...]:
    return tuple(Rule("GET", path, Scope.PUBLIC) for path in paths)


def _reads(*paths: str) -> tuple[Rule, ...]:
    return tuple(Rule("GET", path, Scope.JOB, Role.VIEWER) for path in paths)


def _requests(prefix: str, *verbs: str) -> tuple[Rule, ...]:
    return tuple(Rule("POST", f"{prefix}/{verb}", Scope.JOB, Role.OPERATOR, own=Role.SUBMITTER) for verb in verbs)


_JOB = "/api/v1/jobs/{job_id}"

RULES: tuple[Rule, ...] = (
    *_public("/healthz", "/readyz", "/sign-in", "/static/{name}", "/jobs", "/goodput", "/favicon.ico"),
    Rule("POST", "/sign-in", Scope.PUBLIC),
    Rule("POST", "/sign-out", Scope.PUBLIC),
    Rule("GET", "/metrics", Scope.SOMEWHERE, Role.VIEWER),
    # Jobs
    Rule("POST", "/api/v1/jobs", Scope.BODY, Role.SUBMITTER),
    Rule("POST", "/api/v1/arrays", Scope.BODY, Role.SUBMITTER),
    Rule("GET", "/api/v1/arrays/{array_id}", Scope.SOMEWHERE, Role.VIEWER),
    # The rule of each member's own route is checked too.
    Rule("POST", "/api/v1/arrays/{array_id}/cancel", Scope.SOMEWHERE, Role.SUBMITTER),
    Rule("POST", "/api/v1/arrays/{array_id}/retry", Scope.SOMEWHERE, Role.SUBMITTER),
    Rule("POST", "/api/v1/plan", Scope.BODY, Role.SUBMITTER),
    Rule("GET", "/api/v1/jobs", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/api/v1/events", Scope.SOMEWHERE, Role.VIEWER),
    *_reads(f"{_JOB}/events/stream"),
    *_reads(_JOB, *(f"{_JOB}/{what}" for what in ("attempts", "events", "snapshots", "workers", "metrics", "logs"))),
    *_reads(*(f"{_JOB}/{what}" for what in ("why", "goodput", "request", "nodes", "stacks", "resources"))),
    *_requests(_JOB, "cancel", "suspend", "resume", "snapshot", "scale", "retry", "stacks"),
    Rule("DELETE", _JOB, Scope.JOB, Role.OPERATOR, own=Role.SUBMITTER),
    Rule("POST", f"{_JOB}/chaos", Scope.JOB, Role.OPERATOR),  # a submitter may not, not even on its own job
    # Clusters, nodes, projects, webhooks
    Rule("GET", "/api/v1/clusters", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/api/v1/nodes", Scope.SOMEWHERE, Role.VIEWER),
    Rule("POST", "/api/v1/nodes/{cluster}/{node}/clear", Scope.EVERYWHERE, Role.OPERATOR),
    Rule("GET", "/api/v1/projects", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/api/v1/goodput", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/api/v1/webhooks", Scope.SOMEWHERE, Role.VIEWER),
    Rule("POST", "/api/v1/webhooks", Scope.EVERYWHERE, Role.ADMIN),
    Rule("DELETE", "/api/v1/webhooks/{webhook}", Scope.EVERYWHERE, Role.ADMIN),
    # Tokens and secrets
    Rule("GET", "/api/v1/tokens", Scope.SOMEWHERE, Role.ADMIN),
    Rule("POST", "/api/v1/tokens", Scope.SOMEWHERE, Role.ADMIN),
    Rule("DELETE", "/api/v1/tokens/{token_id}", Scope.SOMEWHERE, Role.ADMIN),
    Rule("GET", "/api/v1/secrets", Scope.SOMEWHERE, Role.SUBMITTER),
    Rule("POST", "/api/v1/secrets", Scope.BODY, Role.ADMIN),
    Rule("DELETE", "/api/v1/secrets/{project}/{name}", Scope.PROJECT, Role.ADMIN),
    # Agents
    Rule("POST", "/api/v1/reports", Scope.WORKER),
    # Pages
    Rule("GET", "/", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/clusters", Scope.SOMEWHERE, Role.VIEWER),
    Rule("POST", "/nodes/{cluster}/{node}/clear", Scope.EVERYWHERE, Role.OPERATOR),
    Rule("GET", "/fleet", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/projects", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/webhooks", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/tokens", Scope.SOMEWHERE, Role.ADMIN),
    Rule("POST", "/tokens", Scope.SOMEWHERE, Role.ADMIN),
    Rule("POST", "/tokens/{token_id}/revoke", Scope.SOMEWHERE, Role.ADMIN),
    Rule("GET", "/secrets", Scope.SOMEWHERE, Role.SUBMITTER),
    Rule("POST", "/secrets", Scope.BODY, Role.ADMIN),
    Rule("POST", "/secrets/{project}/{name}/remove", Scope.PROJECT, Role.ADMIN),
    Rule("GET", "/arrays/{array_id}", Scope.SOMEWHERE, Role.VIEWER),
    # The rule of each member's own route is checked too.
    Rule("POST", "/arrays/{array_id}/cancel", Scope.SOMEWHERE, Role.SUBMITTER),
    Rule("POST", "/arrays/{array_id}/retry", Scope.SOMEWHERE, Role.SUBMITTER),
    # The handler checks that the caller may see each job.
    Rule("GET", "/compare", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/compare/curves", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/submit", Scope.SOMEWHERE, Role.SUBMITTER),
    Rule("POST", "/submit", Scope.BODY, Role.SUBMITTER),
    Rule("POST", "/submit/draft", Scope.BODY, Role.SUBMITTER),
    # Cancels many jobs. The rule of each job's own page is checked too.
    Rule("POST", "/cancel", Scope.BODY, Role.SUBMITTER),
    *_reads("/jobs/{job_id}", "/jobs/{job_id}/charts", "/jobs/{job_id}/launch"),
    *_requests("/jobs/{job_id}", "cancel", "suspend", "resume", "snapshot", "scale", "retry", "stacks"),
    Rule("POST", "/jobs/{job_id}/chaos", Scope.JOB, Role.OPERATOR),
)

_BY_ROUTE = {(rule.method, rule.path): rule for rule in RULES}


def find_rule(method: str, path: str) -> Rule | None:
    return _BY_ROUTE.get((method, path))


def needs_place(rule: Rule, caller: Principal) -> bool:
    """Whether `judge` needs the JobPlace, which costs a query to the store."""
    return rule.scope is Scope.JOB and rule.role is not None and not caller.may_everywhere(rule.role)


def judge(
    rule: Rule | None,
    caller: Principal | None,
    *,
    project: str | None = None,
    job: JobPlace | None = None,
) -> Verdict:
    """Whether the caller may use the route. `project` and `job` are those of the path; None if they do not exist."""
    if rule is None:
        return Verdict.FORBIDDEN
    if rule.scope is Scope.PUBLIC or rule.scope is Scope.WORKER:
        return Verdict.ALLOWED  # the token of a report is checked when its body is read
    if caller is None:
        return Verdict.UNAUTHENTICATED
    if rule.role is None:
        return Verdict.FORBIDDEN
    if rule.scope is Scope.SOMEWHERE or rule.scope is Scope.BODY:
        return Verdict.ALLOWED if caller.may_somewhere(rule.role) else Verdict.FORBIDDEN
    if caller.may_everywhere(rule.role):
        return Verdict.ALLOWED
    if rule.scope is Scope.EVERYWHERE:
        return Verdict.FORBIDDEN
    if rule.scope is Scope.PROJECT:
        return _judge_in(project, caller, rule.role)
    if job is None:
        return Verdict.HIDDEN
    owns = rule.own is not None and job.owner is not None and job.owner == caller.name
    return _judge_in(job.project, caller, rule.own if owns and rule.own is not None else rule.role)


def _judge_in(project: str | None, caller: Principal, needed: Role) -> Verdict:
    if project is None or not caller.may(Role.VIEWER, project):
        return Verdict.HIDDEN
    return Verdict.ALLOWED if caller.may(needed, project) else Verdict.FORBIDDEN
