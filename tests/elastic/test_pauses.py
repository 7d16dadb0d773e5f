"""Agents that are paused for a while, as by SIGSTOP, a suspended job or a paused virtual machine.

The pauses have any length, begin at any time, and stop any agent, with or without its workers.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.elastic.pauses import Cut, Death, Loss, Nodes, Stop
from tests.examples import examples
from trainer.contract.failure import FailureKind

SETTLES_S = 60.0  # after the last pause


def pauses(nodes: int, *, longest_s: float) -> st.SearchStrategy[list[Stop]]:
    one = st.builds(
        Stop,
        node=st.integers(0, nodes - 1),
        begin_s=st.floats(0.0, 40.0),
        length_s=st.floats(0.1, longest_s),
        with_workers=st.booleans(),
    )
    return st.lists(one, min_size=1, max_size=3)


def end_s(stops: list[Stop]) -> float:
    """A time after which no node is paused."""
    return max(stop.begin_s for stop in stops) + sum(stop.length_s for stop in stops)


def assert_all_train(nodes: Nodes) -> None:
    assert nodes.failures == {}
    assert nodes.survived == 0, "a pause was charged as a failure"
    last = nodes.steps[-1]
    assert (last.generation, len(last.nodes)) == (nodes.generation, nodes.count)
    assert last.at_s >= nodes.clock.now_s - 1.0


def assert_no_split(nodes: Nodes) -> None:
    """Only workers of a paused agent may continue while the next generation trains, because no agent ends them."""
    newest = 0
    for step in nodes.steps:
        newest = max(newest, step.generation)
        unwatched = any(nodes.clock.is_or_was_paused(node, step.at_s, 1.5) for node in step.nodes)
        assert step.generation == newest or unwatched, (step, newest)


@given(pauses(1, longest_s=700.0))
def test_a_single_agent_keeps_its_workers(stops: list[Stop]) -> None:
    nodes = Nodes(1, 1, stops)
    nodes.run(end_s(stops) + SETTLES_S)
    assert [generation for _, generation in nodes.formed] == [1]
    assert_all_train(nodes)


@settings(max_examples=examples(12, 200))
@given(st.integers(2, 3), st.data(), st.booleans())
def test_a_group_of_fixed_size_trains_again_after_one_generation_for_each_pause(
    count: int, data: st.DataObject, breaks: bool
) -> None:
    stops = data.draw(pauses(count, longest_s=80.0))
    nodes = Nodes(count, count, stops, breaks=breaks)
    nodes.run(end_s(stops) + SETTLES_S)
    assert nodes.generation <= 1 + len(stops)
    assert_all_train(nodes)
    assert_no_split(nodes)


@pytest.mark.parametrize("begin_s", [19.0, 19.5, 20.0])
@pytest.mark.parametrize("length_s", [31.0, 31.5])
def test_an_agent_that_was_given_up_and_comes_back_is_not_given_up_again(begin_s: float, length_s: float) -> None:
    """The others may read only later that it counts in the store again."""
    nodes = Nodes(2, 2, [Stop(node=1, begin_s=begin_s, length_s=length_s, with_workers=False)], breaks=True)
    nodes.run(begin_s + length_s + SETTLES_S)
    assert nodes.generation <= 2
    assert_all_train(nodes)


@settings(max_examples=examples(12, 200))
@given(st.integers(2, 3), st.data(), st.booleans())
def test_a_group_of_fixed_size_keeps_its_workers_while_agents_are_paused_for_less_than_its_patience(
    count: int, data: st.DataObject, breaks: bool
) -> None:
    drawn = data.draw(pauses(count, longest_s=25.0))
    stops = list({stop.node: stop for stop in drawn}.values())  # two pauses of one agent can look like one
    nodes = Nodes(count, count, stops, breaks=breaks)
    nodes.run(end_s(stops) + SETTLES_S)
    assert nodes.generation == 1
    assert_all_train(nodes)


@settings(max_examples=examples(12, 200))
@given(st.integers(2, 3), st.data(), st.booleans())
def test_an_elastic_group_continues_without_a_paused_agent_and_takes_it_in_again(
    count: int, data: st.DataObject, breaks: bool
) -> None:
    """One generation without it, and one with it."""
    stops = data.draw(pauses(count, longest_s=80.0))
    nodes = Nodes(count, 1, stops, breaks=breaks)
    nodes.run(end_s(stops) + SETTLES_S)
    assert nodes.generation <= 1 + 2 * len(stops)
    assert_all_train(nodes)
    assert_no_split(nodes)


@given(st.data(), st.booleans())
def test_agents_whose_workers_have_succeeded_succeed_although_they_were_paused(
    data: st.DataObject, breaks: bool
) -> None:
    stops = data.draw(pauses(2, longest_s=20.0))
    nodes = Nodes(2, 2, stops, breaks=breaks, finish_at_s=20.0)
    nodes.run(end_s(stops) + SETTLES_S)
    assert nodes.failures == {"node-0": None, "node-1": None}
    assert nodes.survived == 0


@pytest.mark.parametrize("paused", [0, pytest.param(1, marks=pytest.mark.long)])
def test_an_agent_that_is_paused_repeatedly_ends_its_group_with_a_reason(paused: int) -> None:
    """Each pause makes the other agent continue alone, and no generation runs for a minute."""
    stops = [Stop(node=paused, begin_s=20.0 + 60.0 * n, length_s=15.0, with_workers=True) for n in range(40)]
    nodes = Nodes(2, 1, stops)
    nodes.run(end_s(stops))
    assert nodes.generation == 21
    assert nodes.survived == 0
    failures = [nodes.failures[f"node-{number}"] for number in (0, 1)]
    assert [failure and failure.kind for failure in failures] == [FailureKind.RENDEZVOUS] * 2
    # The agent that is paused when the group ends finds the store lost.
    assert any("21 generations in a row made no progress" in failure.message for failure in failures if failure)


@pytest.mark.parametrize("count", [1, 2])
def test_workers_that_fail_at_once_are_restarted_after_growing_pauses(count: int) -> None:
    nodes = Nodes(count, count, crashes=True, max_restarts=9)
    nodes.run(200.0)
    assert nodes.generation == 10
    waits = [after - before for (before, _), (after, _) in pairwise(nodes.formed)]
    for wait_s, least_s in zip(waits, [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0], strict=True):
        assert least_s <= wait_s < least_s + 3.0


@settings(max_examples=examples(10, 1000))
@given(st.integers(2, 4), st.data(), st.booleans())
def test_whatever_nodes_are_lost_or_cut_off_one_group_trains_and_the_living_find_each_other(
    count: int, data: st.DataObject, breaks: bool
) -> None:
    names = [f"node-{number}" for number in range(count)]
    cut = st.builds(
        Cut,
        nodes=st.sets(st.sampled_from(names), min_size=1, max_size=count - 1).map(frozenset),
        begin_s=st.floats(15.0, 60.0),
        length_s=st.floats(0.1, 60.0),
    )
    death = st.builds(Death, node=st.sampled_from(names), at_s=st.floats(15.0, 80.0), silently=st.booleans())
    stop = st.builds(
        Stop,
        node=st.integers(0, count - 1),
        begin_s=st.floats(15.0, 40.0),
        length_s=st.floats(0.1, 20.0),
        with_workers=st.booleans(),
    )
    loss = st.builds(Loss, node=st.sampled_from(names), begin_s=st.floats(15.0, 60.0), length_s=st.floats(0.1, 60.0))
    cuts, stops = data.draw(st.lists(cut, max_size=2)), data.draw(st.lists(stop, max_size=2))
    deaths = data.draw(st.lists(death, max_size=count - 1, unique_by=lambda each: each.node))
    losses = data.draw(st.lists(loss, max_size=2))
    if cuts or stops or losses:
        # An agent that was given up on takes over only if it knows that the others have ended.
        deaths = [replace(each, silently=False) for each in deaths]
    nodes = Nodes(count, 1, stops, breaks=breaks, cuts=cuts, deaths=deaths, losses=losses, max_restarts=9)
    nodes.run(300.0)
    living = set(names) - {death.node for death in deaths}
    assert nodes.failures == {}
    assert nodes.steps[-1].nodes == living
    assert nodes.steps[-1].at_s >= nodes.clock.now_s - 1.0
    assert_no_split(nodes)
    assert_one_group_in_each_generation(nodes)


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("with_workers", [True, False])
def test_the_others_go_on_within_ten_seconds_without_a_paused_agent_that_serves_the_store(
    breaks: bool, with_workers: bool
) -> None:
    nodes = Nodes(3, 1, [Stop(node=0, begin_s=20.0, length_s=80.0, with_workers=with_workers)], breaks=breaks)
    nodes.run(200.0)
    assert first_step_s(nodes, {"node-1", "node-2"}) < 20.0 + 10.0
    assert_all_train(nodes)


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("alone", ["node-0", "node-2"])
def test_most_of_a_group_goes_on_without_the_node_that_is_cut_off(alone: str, breaks: bool) -> None:
    """Also if that node's agent serves the store."""
    nodes = Nodes(3, 1, cuts=[Cut(nodes=frozenset({alone}), begin_s=20.0, length_s=60.0)], breaks=breaks)
    nodes.run(140.0)
    assert first_step_s(nodes, {"node-0", "node-1", "node-2"} - {alone}) < 20.0 + 8.0
    assert not any(step.nodes == {alone} for step in nodes.steps)
    assert_all_train(nodes)
    assert_no_split(nodes)


@pytest.mark.parametrize("count", [3, 5, 8])
def test_the_loss_of_the_host_of_the_store_takes_no_longer_than_that_of_another_node(count: int) -> None:
    """The agents that hear most of their group wait for no other side."""
    names = [f"node-{number}" for number in range(count)]
    took_s = {}
    for lost in (names[0], names[-1]):
        nodes = Nodes(count, 1, cuts=[Cut(nodes=frozenset({lost}), begin_s=20.0, length_s=60.0)], breaks=False)
        nodes.run(40.0)
        took_s[lost] = first_step_s(nodes, {*names} - {lost}) - 20.0
    assert took_s[names[0]] <= took_s[names[-1]], took_s


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("lossy", [0, 1])
def test_a_group_goes_on_without_a_lossy_node_and_takes_it_in_again_once_its_link_is_good(
    lossy: int, count: int, breaks: bool
) -> None:
    """Of two nodes, that whose agent serves the store goes on."""
    nodes = Nodes(count, 1, losses=[Loss(node=f"node-{lossy}", begin_s=20.0, length_s=60.0)], breaks=breaks)
    nodes.run(120.0)
    left_out = f"node-{lossy if count > 2 else 1}"
    assert first_step_s(nodes, {f"node-{n}" for n in range(count)} - {left_out}) < 20.0 + 8.0
    assert nodes.generation == 3
    assert_all_train(nodes)
    assert_no_split(nodes)
    assert_one_group_in_each_generation(nodes)


LOSSES = st.lists(
    st.builds(
        Loss,
        node=st.sampled_from(["node-0", "node-1", "node-2"]),
        begin_s=st.floats(20, 90),
        length_s=st.floats(0.1, 12),
    ),
    min_size=1,
    max_size=6,
)
# Two nodes are left out one after the other. The second one is taken in first.
IN_TURNS = [
    Loss(node="node-1", begin_s=20.0, length_s=1.93),
    Loss(node="node-1", begin_s=31.53, length_s=3.15),
    Loss(node="node-0", begin_s=42.62, length_s=10.06),
    Loss(node="node-1", begin_s=53.31, length_s=4.52),
    Loss(node="node-0", begin_s=79.58, length_s=3.87),
]


@given(LOSSES, st.booleans())
@example(IN_TURNS, True)
def test_a_group_is_whole_again_after_any_losses_of_packets(losses: list[Loss], breaks: bool) -> None:
    nodes = Nodes(3, 1, losses=losses, breaks=breaks)
    nodes.run(102.0 + SETTLES_S)
    assert_all_train(nodes)
    assert_no_split(nodes)
    assert_one_group_in_each_generation(nodes)


@pytest.mark.parametrize("breaks", [True, False])
def test_a_group_that_needs_a_lossy_node_waits_for_it(breaks: bool) -> None:
    nodes = Nodes(3, 3, losses=[Loss(node="node-1", begin_s=20.0, length_s=60.0)], breaks=breaks)
    nodes.run(120.0)
    assert nodes.generation == 1
    assert_all_train(nodes)


def test_a_lossy_node_is_taken_in_if_the_group_is_too_small_without_it() -> None:
    losses, deaths = (
        [Loss(node="node-1", begin_s=20.0, length_s=30.0)],
        [Death(node="node-2", at_s=35.0, silently=True)],
    )
    nodes = Nodes(3, 2, losses=losses, deaths=deaths, max_restarts=9)
    nodes.run(120.0)
    assert nodes.steps[-1].nodes == {"node-0", "node-1"}
    assert 50.0 <= first_step_s(nodes, {"node-0", "node-1"}) < 53.0


@pytest.mark.parametrize("length_s", [32.0, 33.0, 34.0])
def test_all_agents_leave_the_store_of_an_agent_that_was_replaced_during_its_pause(length_s: float) -> None:
    """One agent was paused too, so it is patient for longer than the one that replaces the store."""
    stops = [Stop(node=node, begin_s=1.0, length_s=s, with_workers=False) for node, s in ((0, length_s), (1, 3.0))]
    nodes = Nodes(3, 3, stops, breaks=False)
    nodes.run(length_s + SETTLES_S)
    assert nodes.generation <= 2
    assert_all_train(nodes)


@pytest.mark.parametrize("later_s", [0.3, 0.8, 1.5, 2.5])
def test_the_others_go_on_within_ten_seconds_if_the_host_of_the_store_falls_silent_while_they_form_a_group(
    later_s: float,
) -> None:
    deaths = [Death(node="node-3", at_s=20.0, silently=False), Death(node="node-0", at_s=20.0 + later_s, silently=True)]
    nodes = Nodes(4, 1, deaths=deaths, max_restarts=9)
    nodes.run(60.0)
    assert first_step_s(nodes, {"node-1", "node-2"}) < 20.0 + later_s + 10.0


def first_step_s(nodes: Nodes, group: set[str]) -> float:
    """When exactly this group made its first step."""
    return next(step.at_s for step in nodes.steps if step.nodes == group) - 1000.0


def assert_one_group_in_each_generation(nodes: Nodes) -> None:
    groups: dict[int, frozenset[str]] = {}
    for step in nodes.steps:
        assert groups.setdefault(step.generation, step.nodes) == step.nodes, step
