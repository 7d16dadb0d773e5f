"""Which lease a service requests, and when its holder hands it over."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.queueing.lease import Lease, LeaseStanding
from orchestrator.domain.queueing.sharing import PROVEN_AFTER, choose_successor, may_request
from tests.builders import NOW, at


def standings(holders: str) -> list[LeaseStanding]:
    """One cluster for each letter, which names its holder. The first cluster is c0. All were taken long ago."""
    return [
        LeaseStanding(
            lease=Lease(cluster=f"c{number}", holder=holder, token=1), since=at(0), expires_at=NOW, expired=False
        )
        for number, holder in enumerate(holders)
    ]


LATER = at(0) + PROVEN_AFTER


@pytest.mark.parametrize(
    ("holders", "cluster", "requests"),
    [
        ("aa", "c0", True),
        ("aab", "c0", False),
        ("aaab", "c0", True),
        ("aaab", "c3", False),  # its own
        ("aacb", "c2", False),  # of a service with as few
        ("aa", "c9", False),  # that nobody has supervised
        ("a", "c0", False),
    ],
)
def test_a_service_requests_a_lease_of_one_that_holds_two_more(holders: str, cluster: str, requests: bool) -> None:
    assert may_request(standings(holders), cluster, "b", set(), LATER) is requests


def test_expired_leases_count_for_nobody() -> None:
    found = standings("aaab")
    assert not may_request([replace(found[0], expired=True), *found[1:]], "c0", "b", set(), LATER)
    assert not may_request([replace(found[0], expired=True), *found[1:]], "c1", "b", set(), LATER)
    more = standings("aaaab")
    assert not may_request([replace(more[0], expired=True), *more[1:]], "c0", "b", set(), LATER)
    assert may_request([*found[:3], replace(found[3], expired=True)], "c0", "b", set(), LATER)


def test_a_request_stands_alone() -> None:
    found = standings("aaaab")
    others = [replace(found[0], requester="c"), *found[1:]]
    assert not may_request(others, "c0", "b", set(), LATER)
    assert may_request(others, "c1", "b", set(), LATER)
    own = [replace(found[0], requester="b"), *found[1:]]
    assert may_request(own, "c0", "b", set(), LATER), "to renew the request"
    assert not may_request(own, "c1", "b", set(), LATER)


def test_a_cluster_that_was_given_up_is_not_requested_and_counts_until_another_has_proved_to_see_it() -> None:
    found = standings("aaab")
    soon = LATER - timedelta(seconds=1)
    assert not may_request(found, "c0", "b", {"c0"}, LATER)
    assert not may_request(found, "c1", "b", {"c0"}, soon)
    assert may_request(found, "c1", "b", {"c0"}, LATER)
    assert may_request(found, "c1", "b", {"c9"}, soon)
    nobody = [replace(found[0], expired=True), *found[1:], *standings("aaaaaa")[4:]]
    assert not may_request(nobody[:5], "c1", "b", {"c0"}, LATER)
    untold = [replace(found[0], since=None), *found[1:]]
    assert not may_request(untold, "c1", "b", {"c0"}, LATER)
    assert may_request(nobody, "c1", "b", {"c0"}, LATER)


@pytest.mark.parametrize(("holders", "goes"), [("aa", True), ("aab", False), ("aaab", True), ("aaabb", False)])
def test_a_lease_is_handed_over_if_its_requester_holds_two_fewer(holders: str, goes: bool) -> None:
    found = standings(holders)
    asked = [replace(found[0], requester="b"), *found[1:]]
    assert choose_successor(asked, found[0].lease) == ("b" if goes else None)
    assert choose_successor(asked, found[1].lease) is None, "nobody requests it"
    assert choose_successor(asked, replace(found[0].lease, token=2)) is None, "it is no longer the holder's"
    assert choose_successor([replace(asked[0], expired=True), *asked[1:]], found[0].lease) is None


@given(st.text("abc", min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_hand_overs_in_any_order_end_with_even_shares(holders: str, random: Random) -> None:
    found, moves = standings(holders), 0
    while True:
        requests = [
            (number, service)
            for number, each in enumerate(found)
            for service in "abc"
            if may_request(found, each.lease.cluster, service, set(), LATER)
        ]
        if not requests:
            break
        number, service = random.choice(requests)
        asked = replace(found[number], requester=service)
        assert choose_successor([*found[:number], asked, *found[number + 1 :]], asked.lease) == service
        found[number] = replace(asked, requester=None, lease=replace(asked.lease, holder=service))
        moves += 1
    shares = [sum(each.lease.holder == service for each in found) for service in "abc"]
    assert max(shares) - min(shares) <= 1
    squares = sum(holders.count(service) ** 2 for service in "abc"), sum(share**2 for share in shares)
    assert moves <= (squares[0] - squares[1]) // 2
