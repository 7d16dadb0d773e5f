"""The table of rules: closed where it says nothing, and what each scope asks for."""

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


def test_every_rule_is_found_and_stands_once() -> None:
    assert len({(rule.method, rule.path) for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert find_rule(rule.method, rule.path) is rule


def test_only_reading_is_public_beside_signing_in_and_out() -> None:
    changing = [rule.path for rule in RULES if rule.scope is Scope.PUBLIC and rule.method != "GET"]
    assert changing == ["/sign-in", "/sign-out"]


def test_whoever_changes_something_has_more_than_a_viewers_role() -> None:
    for rule in RULES:
        if rule.method != "GET" and rule.scope not in (Scope.PUBLIC, Scope.WORKER):
            assert rule.role is not None
            assert rule.role.covers(Role.SUBMITTER), rule
            assert rule.own is None or rule.own.covers(Role.SUBMITTER), rule


@pytest.mark.parametrize("scope", [Scope.SOMEWHERE, Scope.BODY, Scope.PROJECT, Scope.JOB])
def test_nobody_known_is_asked_to_sign_in(scope: Scope) -> None:
    assert judge(Rule("GET", "/x", scope, Role.VIEWER), None, project="here", job=HERE) is Verdict.UNAUTHENTICATED


@pytest.mark.parametrize("scope", [Scope.PUBLIC, Scope.WORKER])
def test_what_needs_no_role_asks_nobody(scope: Scope) -> None:
    assert judge(Rule("GET", "/x", scope), None) is Verdict.ALLOWED


@pytest.mark.parametrize("scope", [Scope.SOMEWHERE, Scope.BODY])
def test_a_role_anywhere_opens_what_is_cut_or_asked_about_later(scope: Scope) -> None:
    rule = Rule("GET", "/x", scope, Role.OPERATOR)
    assert judge(rule, someone(Role.OPERATOR)) is Verdict.ALLOWED
    assert judge(rule, someone(Role.SUBMITTER)) is Verdict.FORBIDDEN
    assert judge(rule, Principal(name="nobody")) is Verdict.FORBIDDEN


@pytest.mark.parametrize("scope", [Scope.EVERYWHERE, Scope.SOMEWHERE, Scope.BODY, Scope.PROJECT, Scope.JOB])
def test_a_rule_that_forgot_its_role_is_closed(scope: Scope) -> None:
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
def test_a_job_is_steered_by_operators_and_by_who_submitted_it(caller: Principal, verdict: Verdict) -> None:
    assert judge(STEER, caller, job=HERE) is verdict


def test_a_job_of_nobody_is_not_anybodys_own() -> None:
    anonymous = JobPlace(project="here", owner=None)
    assert judge(STEER, someone(Role.SUBMITTER), job=anonymous) is Verdict.FORBIDDEN


def test_reading_is_nobodys_privilege_by_ownership() -> None:
    assert judge(READ, someone(Role.VIEWER, "elsewhere", name="alice"), job=HERE) is Verdict.HIDDEN


def test_an_unknown_job_looks_like_one_of_another_project() -> None:
    assert judge(READ, someone(Role.ADMIN), job=None) is Verdict.HIDDEN
    assert judge(READ, LOCAL, job=None) is Verdict.ALLOWED, "whoever sees all learns it from the store"


@pytest.mark.parametrize(
    ("caller", "verdict"),
    [
        (someone(Role.ADMIN), Verdict.ALLOWED),
        (someone(Role.OPERATOR), Verdict.FORBIDDEN),
        (someone(Role.ADMIN, "elsewhere"), Verdict.HIDDEN),
        (someone(Role.ADMIN, "*"), Verdict.ALLOWED),
    ],
)
def test_a_project_in_the_path_is_its_admins_affair(caller: Principal, verdict: Verdict) -> None:
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
def test_what_concerns_every_project_takes_the_role_in_every_one(caller: Principal | None, verdict: Verdict) -> None:
    rule = Rule("POST", "/x", Scope.EVERYWHERE, Role.ADMIN)
    assert judge(rule, caller) is verdict
    assert judge(rule, caller, project="here", job=HERE) is verdict


def test_where_a_job_is_matters_only_to_those_who_do_not_see_all() -> None:
    assert needs_place(READ, someone(Role.ADMIN))
    assert not needs_place(READ, someone(Role.VIEWER, "*"))
    assert needs_place(STEER, someone(Role.SUBMITTER, "*"))
    assert not needs_place(Rule("GET", "/x", Scope.SOMEWHERE, Role.VIEWER), someone(Role.VIEWER))
