"""Which role each route needs: the policy of authorisation, as one table. Pure.

What is not in the table is refused, so that a new route is closed until it has a rule. What a caller may not see in a
project is answered like an unknown thing, so that nobody learns names by asking.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.domain.access.identity import Principal, Role


class Scope(StrEnum):
    """Where a caller needs the role."""

    PUBLIC = "public"  # nowhere: without a token
    EVERYWHERE = "everywhere"  # in every project: what concerns all of them
    SOMEWHERE = "somewhere"  # in one project at least; what is answered is cut to the caller's projects by the handler
    BODY = "body"  # in the project that the body names, which the handler asks about once it is read
    PROJECT = "project"  # in the project that the path names
    JOB = "job"  # in the project of the job that the path names
    WORKER = "worker"  # no role: the token of the attempt that the report is about


@dataclass(frozen=True, slots=True)
class Rule:
    method: str
    path: str  # as the route has it
    scope: Scope
    role: Role | None = None
    own: Role | None = None  # enough for the job's own submitter


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """What access to a job depends on."""

    project: str
    owner: str | None  # who submitted it; None: nobody was asked


class Verdict(StrEnum):
    ALLOWED = "allowed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"  # the caller sees it and may not do this
    HIDDEN = "hidden"  # the caller is answered as if there were no such thing


def _public(*paths: str) -> tuple[Rule, ...]:
    return tuple(Rule("GET", path, Scope.PUBLIC) for path in paths)


def _reads(*paths: str) -> tuple[Rule, ...]:
    return tuple(Rule("GET", path, Scope.JOB, Role.VIEWER) for path in paths)


def _requests(prefix: str, *verbs: str) -> tuple[Rule, ...]:
    return tuple(Rule("POST", f"{prefix}/{verb}", Scope.JOB, Role.OPERATOR, own=Role.SUBMITTER) for verb in verbs)


_JOB = "/api/v1/jobs/{job_id}"

RULES: tuple[Rule, ...] = (
    *_public("/healthz", "/readyz", "/sign-in", "/static/{name}"),
    Rule("POST", "/sign-in", Scope.PUBLIC),
    Rule("POST", "/sign-out", Scope.PUBLIC),
    Rule("GET", "/metrics", Scope.SOMEWHERE, Role.VIEWER),
    # Jobs
    Rule("POST", "/api/v1/jobs", Scope.BODY, Role.SUBMITTER),
    Rule("POST", "/api/v1/plan", Scope.BODY, Role.SUBMITTER),
    Rule("GET", "/api/v1/jobs", Scope.SOMEWHERE, Role.VIEWER),
    Rule("GET", "/api/v1/events", Scope.SOMEWHERE, Role.VIEWER),
    *_reads(f"{_JOB}/events/stream"),
    *_reads(_JOB, *(f"{_JOB}/{what}" for what in ("attempts", "events", "snapshots", "workers", "metrics", "logs"))),
    *_reads(*(f"{_JOB}/{what}" for what in ("why", "goodput", "request", "nodes", "stacks"))),
    *_requests(_JOB, "cancel", "suspend", "resume", "snapshot", "scale", "retry", "stacks"),
    Rule("DELETE", _JOB, Scope.JOB, Role.OPERATOR, own=Role.SUBMITTER),
    Rule("POST", f"{_JOB}/chaos", Scope.JOB, Role.OPERATOR),  # also of one's own job: a submitter must not
    # What there is
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
    Rule("GET", "/submit", Scope.SOMEWHERE, Role.SUBMITTER),
    Rule("POST", "/submit", Scope.BODY, Role.SUBMITTER),
    Rule("POST", "/submit/draft", Scope.BODY, Role.SUBMITTER),
    Rule("POST", "/cancel", Scope.BODY, Role.SUBMITTER),  # of many jobs, each by the rule of its own page
    *_reads("/jobs/{job_id}", "/jobs/{job_id}/charts", "/jobs/{job_id}/launch"),
    *_requests("/jobs/{job_id}", "cancel", "suspend", "resume", "snapshot", "scale", "retry", "stacks"),
    Rule("POST", "/jobs/{job_id}/chaos", Scope.JOB, Role.OPERATOR),
)

_BY_ROUTE = {(rule.method, rule.path): rule for rule in RULES}


def find_rule(method: str, path: str) -> Rule | None:
    return _BY_ROUTE.get((method, path))


def needs_place(rule: Rule, caller: Principal) -> bool:
    """Whether the answer depends on where the job is; it costs a question to the store."""
    return rule.scope is Scope.JOB and rule.role is not None and not caller.may_everywhere(rule.role)


def judge(
    rule: Rule | None,
    caller: Principal | None,
    *,
    project: str | None = None,
    job: JobPlace | None = None,
) -> Verdict:
    """Whether the caller may. `project` and `job` are the ones that the path names; None: unknown."""
    if rule is None:
        return Verdict.FORBIDDEN
    if rule.scope is Scope.PUBLIC or rule.scope is Scope.WORKER:
        return Verdict.ALLOWED  # a report's own token is looked at when its body is read
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
