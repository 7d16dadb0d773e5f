"""The rules of routes: closed by default, and the needs of each scope."""

from __future__ import annotations

import pytest

from orchestrator.domain.access.identity import LOCAL, Principal, Role
from orchestrator.domain.access.route_roles import RULES, JobPlace, Rule, Scope, Verdict, find_rule, judge, needs_place

HERE = JobPlace(project="here", owner="alice")
STEER = Rule("POST", "/steer", Scope.JOB, Role.OPERATOR, own=Role.SUBMITTER)
READ = Rule("GET", "/read", Scope.JOB, Role.VIEWER)


def someone(role: Role, project: str = "here", name: str = "someone") -> Principal:
    return Principal(name=name, grants={project: role})


def test_a_route_without_a_rule_is_closed_to_everybody() -> None:
    assert find_rule("GET", "/nowhere") is None
    assert find_rule("PUT", "/api/v1/jobs") is None
    assert judge(None, LOCAL) is Verdict.FORBIDDEN
    assert judge(None, None) is Verdict.FORBIDDEN


def test_every_rule_is_found_and_unique() -> None:
    assert len({(rule.method, rule.path) for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert find_rule(rule.method, rule.path) is rule


def test_only_reading_is_public_beside_signing_in_and_out() -> None:
    changing = [rule.path for rule in RULES if rule.scope is Scope.PUBLIC and rule.method != "GET"]
    assert changing == ["/sign-in", "/sign-out"]


def test_every_change_needs_more_than_the_role_viewer() -> None:
    for rule in RULES:
        if rule.method != "GET" and rule.scope not in (Scope.PUBLIC, Scope.WORKER):
            assert rule.role is not None
            assert rule.role.covers(Role.SUBMITTER), rule
            assert rule.own is None or rule.own.covers(Role.SUBMITTER), rule


@pytest.mark.parametrize("scope", [Scope.SOMEWHERE, Scope.BODY, Scope.PROJECT, Scope.JOB])
def test_a_caller_without_credentials_is_unauthenticated(scope: Scope) -> None:
    assert judge(Rule("GET", "/x", scope, Role.VIEWER), None, project="here", job=HERE) is Verdict.UNAUTHENTICATED


@pytest.mark.parametrize("scope", [Scope.PUBLIC, Scope.WORKER])
def test_public_and_worker_scopes_need_no_caller(scope: Scope) -> None:
    assert judge(Rule("GET", "/x", scope), None) is Verdict.ALLOWED


@pytest.mark.parametrize("scope", [Scope.SOMEWHERE, Scope.BODY])
def test_a_role_in_any_project_suffices_for_these_scopes(scope: Scope) -> None:
    rule = Rule("GET", "/x", scope, Role.OPERATOR)
    assert judge(rule, someone(Role.OPERATOR)) is Verdict.ALLOWED
    assert judge(rule, someone(Role.SUBMITTER)) is Verdict.FORBIDDEN
    assert judge(rule, Principal(name="nobody")) is Verdict.FORBIDDEN


@pytest.mark.parametrize("scope", [Scope.EVERYWHERE, Scope.SOMEWHERE, Scope.BODY, Scope.PROJECT, Scope.JOB])
def test_a_rule_without_a_role_is_closed(scope: Scope) -> None:
    assert judge(Rule("GET", "/x", scope), LOCAL, project="here", job=HERE) is Verdict.FORBIDDEN


@pytest.mark.parametrize(
    ("caller", "verdict"),
    [
        (someone(Role.VIEWER), Verdict.FORBIDDEN),
        (someone(Role.SUBMITTER), Verdict.FORBIDDEN),
        (someone(Role.SUBMITTER, name="alice"), Verdict.ALLOWED),
        (someone(Role.VIEWER, name="alice"), Verdict.FORBIDDEN),
        (someone(Role.OPERATOR), Verdict.ALLOWED),
        (someone(Role.ADMIN), Verdict.ALLOWED),
        (someone(Role.ADMIN, "elsewhere"), Verdict.HIDDEN),
        (someone(Role.SUBMITTER, "elsewhere", name="alice"), Verdict.HIDDEN),
        (someone(Role.OPERATOR, "*"), Verdict.ALLOWED),
        (someone(Role.VIEWER, "*"), Verdict.FORBIDDEN),
        (someone(Role.SUBMITTER, "*", name="alice"), Verdict.ALLOWED),
    ],
)
def test_operators_and_the_submitter_may_change_a_job(caller: Principal, verdict: Verdict) -> None:
    assert judge(STEER, caller, job=HERE) is verdict


def test_a_job_without_an_owner_belongs_to_nobody() -> None:
    anonymous = JobPlace(project="here", owner=None)
    assert judge(STEER, someone(Role.SUBMITTER), job=anonymous) is Verdict.FORBIDDEN


def test_ownership_does_not_grant_access_to_another_project() -> None:
    assert judge(READ, someone(Role.VIEWER, "elsewhere", name="alice"), job=HERE) is Verdict.HIDDEN


def test_an_unknown_job_gets_the_verdict_of_a_hidden_one() -> None:
    assert judge(READ, someone(Role.ADMIN), job=None) is Verdict.HIDDEN
    assert judge(READ, LOCAL, job=None) is Verdict.ALLOWED, "for a caller who sees all, the store answers 404"


@pytest.mark.parametrize(
    ("caller", "verdict"),
    [
        (someone(Role.ADMIN), Verdict.ALLOWED),
        (someone(Role.OPERATOR), Verdict.FORBIDDEN),
        (someone(Role.ADMIN, "elsewhere"), Verdict.HIDDEN),
        (someone(Role.ADMIN, "*"), Verdict.ALLOWED),
    ],
)
def test_only_an_admin_of_the_project_in_the_path_is_allowed(caller: Principal, verdict: Verdict) -> None:
    assert judge(Rule("DELETE", "/x", Scope.PROJECT, Role.ADMIN), caller, project="here") is verdict


@pytest.mark.parametrize(
    ("caller", "verdict"),
    [
        (None, Verdict.UNAUTHENTICATED),
        (LOCAL, Verdict.ALLOWED),
        (someone(Role.ADMIN, "*"), Verdict.ALLOWED),
        (someone(Role.OPERATOR, "*"), Verdict.FORBIDDEN),
        (someone(Role.ADMIN), Verdict.FORBIDDEN),
    ],
)
def test_the_scope_everywhere_needs_the_role_in_every_project(caller: Principal | None, verdict: Verdict) -> None:
    rule = Rule("POST", "/x", Scope.EVERYWHERE, Role.ADMIN)
    assert judge(rule, caller) is verdict
    assert judge(rule, caller, project="here", job=HERE) is verdict


def test_the_place_of_a_job_is_needed_unless_the_caller_sees_all() -> None:
    assert needs_place(READ, someone(Role.ADMIN))
    assert not needs_place(READ, someone(Role.VIEWER, "*"))
    assert needs_place(STEER, someone(Role.SUBMITTER, "*"))
    assert not needs_place(Rule("GET", "/x", Scope.SOMEWHERE, Role.VIEWER), someone(Role.VIEWER))
