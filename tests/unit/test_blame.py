"""Nodes that a preflight blames for failed pairs."""

from __future__ import annotations

from itertools import combinations

import pytest

from trainer.contract.blame import (
    NodeVerdict,
    blame,
    find_unlike,
    judge_nodes,
    judge_pairs,
    judge_versions,
    pair_rounds,
    parse_node_verdict,
    render_node_verdict,
)
from trainer.contract.verdict import Outcome, Verdict

FOUR = ("n1", "n2", "n3", "n4")


@pytest.mark.parametrize(
    ("failed", "blamed"),
    [
        ([], ()),
        ([("n1", "n2")], ()),  # either of the two may be at fault
        ([("n1", "n2"), ("n2", "n1")], ()),
        ([("n1", "n2"), ("n3", "n4")], ()),
        ([("n2", "n1"), ("n2", "n3"), ("n4", "n2")], ("n2",)),
        ([("n2", "n1"), ("n2", "n3"), ("n2", "n4"), ("n3", "n1"), ("n3", "n4")], ()),  # two nodes fail equally often
        ([("a", other) for other in FOUR] + [("b", "n1"), ("b", "n2")], ("a", "b")),
        ([("n1", "n1"), ("n1", "n1")], ()),
    ],
    ids=range(8),
)
def test_who_is_in_most_of_the_pairs_that_failed_is_to_blame(
    failed: list[tuple[str, str]], blamed: tuple[str, ...]
) -> None:
    assert blame(failed) == blamed


def test_who_differs_from_more_than_half_is_unlike() -> None:
    assert find_unlike({"a": "1", "b": "1", "c": "2"}) == ("c",)
    assert find_unlike({"a": "1", "b": "2"}) == ()
    assert find_unlike({}) == ()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 16])
def test_in_rounds_all_meet_all_once_and_nobody_two_at_one_time(count: int) -> None:
    rounds = pair_rounds(count)
    assert sorted(pair for pairs in rounds for pair in pairs) == sorted(combinations(range(count), 2))
    for pairs in rounds:
        met = [one for pair in pairs for one in pair]
        assert len(met) == len(set(met))


def test_of_many_nodes_each_meets_as_many_as_there_are_rounds() -> None:
    rounds = pair_rounds(1000, most=15)
    assert len(rounds) == 15
    assert all(len(pairs) == 500 for pairs in rounds)
    assert len({pair for pairs in rounds for pair in pairs}) == 15 * 500


def bandwidths(**slow: float) -> dict[tuple[str, str], float]:
    return {pair: slow.get("_".join(pair), 8e9) for pair in combinations(FOUR, 2)}


def test_a_slow_link_is_told_and_a_node_whose_links_are_all_slow_is_to_blame() -> None:
    alike = judge_pairs(bandwidths(n1_n2=5e9))
    assert (alike.outcome, alike.nodes) == (Outcome.OK, ())
    assert "median 8.00 GB/s, slowest 5.00 GB/s between n1 and n2" in alike.sentence
    link = judge_pairs(bandwidths(n1_n2=3.9e9))
    assert (link.outcome, link.nodes) == (Outcome.WARN, ())
    assert "1 below 50% of the median" in link.sentence
    node = judge_pairs(bandwidths(n1_n3=1e9, n2_n3=1e9, n3_n4=1e9))
    assert (node.outcome, node.nodes) == (Outcome.FAIL, ("n3",))
    assert "most pairs of n3 are below 25% of the median" in node.sentence


def test_of_two_nodes_no_median_tells_which_is_slow_and_of_one_there_is_none() -> None:
    assert judge_pairs({("n1", "n2"): 1.0}).outcome is Outcome.OK
    assert judge_pairs({}).outcome is Outcome.SKIPPED


def versions(**other: str) -> dict[str, dict[str, str]]:
    return {node: {"torch": other.get(node, "2.13"), "driver": other.get(f"{node}_driver", "580")} for node in FOUR}


def test_nodes_that_run_something_else_than_most_are_to_blame() -> None:
    good = judge_versions(versions(), essential=("torch", "cuda"))
    assert (good.outcome, good.sentence) == (Outcome.OK, "equal on 4 nodes: torch 2.13")
    wrong = judge_versions(versions(n2="2.6"), essential=("torch",))
    assert (wrong.outcome, wrong.nodes) == (Outcome.FAIL, ("n2",))
    assert wrong.sentence == "torch is 2.13 on n1, n3, n4 and 2.6 on n2"
    half = judge_versions(versions(n2="2.6", n3="2.6"), essential=("torch",))
    assert (half.outcome, half.nodes) == (Outcome.FAIL, ())
    driver = judge_versions(versions(n4_driver="570"), essential=("torch",))
    assert (driver.outcome, driver.nodes) == (Outcome.WARN, ())
    lacking = {**versions(), "n1": {"torch": "2.13"}}
    assert judge_versions(lacking, essential=("driver",)).nodes == ("n1",)
    assert judge_versions({}, essential=("torch",)).outcome is Outcome.OK


def test_of_many_nodes_with_one_version_the_first_are_named() -> None:
    told = {f"n{number}": {"torch": "1" if number else "2"} for number in range(6)}
    assert judge_versions(told, essential=()).sentence == "torch is 2 on n0 and 1 on n1, n2, n3 and more"


def test_each_node_has_a_verdict_of_the_checks_that_it_failed() -> None:
    verdicts = [
        Verdict(check="names", outcome=Outcome.FAIL, sentence="", nodes=("b", "c")),
        Verdict(check="clocks", outcome=Outcome.WARN, sentence="", nodes=("a",)),
        Verdict(check="ports", outcome=Outcome.FAIL, sentence="", nodes=("b",)),
    ]
    judged = judge_nodes(["b", "a", "b", "c"], verdicts)
    assert [(each.node, each.checks, each.is_good) for each in judged] == [
        ("a", (), True),
        ("b", ("names", "ports"), False),
        ("c", ("names",), False),
    ]
    assert [parse_node_verdict(f"[a1 g1 r0/0] {render_node_verdict(each)}") for each in judged] == judged
    assert parse_node_verdict("preflight-node: n1 perhaps") is None
    assert parse_node_verdict("preflight: names ok: x") is None
    assert NodeVerdict(node="a").is_good
