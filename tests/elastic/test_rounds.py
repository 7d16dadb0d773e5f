"""The rendezvous protocol under any order of joins, losses and ends."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.elastic.rendezvous.round_document import (
    Ending,
    Limits,
    Member,
    Round,
    Stage,
    WorkersStore,
    parse_round,
    render_round,
)
from trainer.elastic.rendezvous.round_queries import (
    can_form_without,
    explain_lost_peers,
    find_change,
    find_lost,
    find_missing,
    find_stillness,
    find_successor,
    linked_to,
    newcomer_can_wait,
    pause_s,
    watched_by,
)
from trainer.elastic.rendezvous.rounds import (
    Lost,
    close,
    drop,
    finish,
    form,
    join,
    lose,
    mark_lossy,
    publish_store,
    reopen,
    report_stillness,
    succeed,
)

LIMITS = Limits(min_nodes=2, max_nodes=3)


def member(name: str, node_rank: int | None = None, generation: int = 0) -> Member:
    return Member(node=name, node_rank=node_rank, address=f"host-{name}", workers=2, generation=generation)


A, B, C, D = (member(name) for name in "abcd")


def formed(*members: Member, limits: Limits = LIMITS) -> Round:
    round_ = Round()
    for each in members:
        round_ = join(round_, each, limits)
    return form(round_, limits, time_is_up=True)


def test_a_group_forms_if_it_is_full_or_if_the_time_for_latecomers_is_over() -> None:
    two = join(join(Round(), A, LIMITS), B, LIMITS)
    assert form(two, LIMITS, time_is_up=False).stage is Stage.OPEN
    assert form(two, LIMITS, time_is_up=True).stage is Stage.FORMED
    assert form(join(two, C, LIMITS), LIMITS, time_is_up=False).stage is Stage.FORMED
    assert form(join(Round(), A, LIMITS), LIMITS, time_is_up=True).stage is Stage.OPEN


def test_members_are_ordered_by_node_rank_and_then_by_arrival() -> None:
    round_ = formed(B, member("x", node_rank=1), member("y", node_rank=0))
    assert [each.node for each in round_.members] == ["y", "x", "b"]


def test_the_generation_is_above_every_generation_that_a_member_knows() -> None:
    assert formed(A, member("x", generation=7)).generation == 8


def test_a_group_forms_again_at_once_when_all_members_are_back() -> None:
    open_ = reopen(formed(A, B), A, LIMITS, Ending())
    assert (open_.number, open_.awaited) == (1, frozenset("b"))
    assert form(open_, LIMITS, time_is_up=False).stage is Stage.OPEN
    again = form(join(open_, B, LIMITS), LIMITS, time_is_up=False)
    assert (again.stage, again.generation) == (Stage.FORMED, 2)


def test_a_group_does_not_wait_for_a_lost_member() -> None:
    open_ = drop(reopen(formed(A, B, C), A, LIMITS, Ending()), {"c"})
    assert form(join(open_, B, LIMITS), LIMITS, time_is_up=False).stage is Stage.FORMED


def test_a_newcomer_waits_beside_a_formed_group_and_joins_the_next_round() -> None:
    group = formed(A, B)
    seen = join(group, C, LIMITS)
    assert seen.nodes == group.nodes
    assert find_change(seen, group, "a", LIMITS) == "host-c is waiting to join"
    assert reopen(seen, A, LIMITS, Ending()).nodes == frozenset("ac")


def test_a_newcomer_that_is_not_ready_waits_beside_every_round_and_changes_nothing() -> None:
    group, unready = formed(A, B), replace(C, is_ready=False)
    seen = join(group, unready, LIMITS)
    assert newcomer_can_wait(group, "c", LIMITS)
    assert not newcomer_can_wait(group, "b", LIMITS)
    assert not newcomer_can_wait(drop(group, {"b"}), "c", LIMITS)
    assert not newcomer_can_wait(Round(), "c", LIMITS)
    assert find_change(seen, group, "a", LIMITS) is None
    open_ = join(reopen(seen, A, LIMITS, Ending()), unready, LIMITS)
    assert (open_.nodes, open_.waiting) == (frozenset("a"), (unready,))
    again = form(join(open_, B, LIMITS), LIMITS, time_is_up=False)
    assert (again.stage, again.waiting) == (Stage.FORMED, (unready,))
    assert find_change(join(again, C, LIMITS), again, "a", LIMITS) == "host-c is waiting to join"
    assert join(open_, C, LIMITS).waiting == ()


def test_a_newcomer_to_a_full_group_waits_until_there_is_room() -> None:
    group = formed(A, B, C)
    seen = join(group, D, LIMITS)
    assert find_change(seen, group, "a", LIMITS) is None
    assert reopen(seen, A, LIMITS, Ending()).nodes == frozenset("a")
    assert reopen(drop(seen, {"b"}), A, LIMITS, Ending()).nodes == frozenset("ad")


def test_a_returning_member_has_precedence_over_a_newcomer() -> None:
    open_ = join(reopen(formed(A, B, C), A, LIMITS, Ending()), B, LIMITS)
    seen = join(open_, D, LIMITS)
    assert (seen.nodes, seen.waiting) == (frozenset("ab"), (D,))
    assert form(seen, LIMITS, time_is_up=False).stage is Stage.OPEN
    back = form(join(seen, C, LIMITS), LIMITS, time_is_up=False)
    assert (back.nodes, back.waiting) == (frozenset("abc"), (D,))


def test_a_newcomer_takes_the_place_of_a_member_that_is_lost_or_too_late() -> None:
    open_ = join(join(reopen(formed(A, B, C), A, LIMITS, Ending()), B, LIMITS), D, LIMITS)
    lost = drop(open_, {"c"})
    assert form(join(lost, D, LIMITS), LIMITS, time_is_up=False).nodes == frozenset("abd")
    late = form(open_, LIMITS, time_is_up=True)
    assert (late.nodes, late.waiting) == (frozenset("abd"), ())


def test_a_newcomer_opens_the_next_round_if_all_members_are_gone() -> None:
    left = drop(join(formed(A, B), C, LIMITS), {"a", "b"})
    assert join(left, C, LIMITS).nodes == frozenset("c")
    assert join(drop(formed(A, B), {"a", "b"}), D, LIMITS).nodes == frozenset("d")


def test_a_member_sees_which_member_is_lost_and_that_it_was_dropped_itself() -> None:
    group = formed(A, B, C)
    seen = drop(group, {"c"})
    assert find_change(seen, group, "a", LIMITS) == "the group lost host-c"
    assert find_change(seen, group, "c", LIMITS) == "the other nodes have dropped this one"
    assert (
        find_change(reopen(seen, A, LIMITS, Ending()), group, "b", LIMITS) == "another node has opened the next round"
    )


def test_lost_members_are_named_until_another_round_is_open() -> None:
    group = formed(A, B, C)
    seen = drop(finish(group, 1, "b", LIMITS), {"b", "c"})
    assert [member.node for member in find_lost(seen, group)] == ["c"]
    assert find_lost(reopen(drop(group, {"c"}), A, LIMITS, Ending()), group) == []


def test_a_finished_member_may_leave_and_no_group_forms_without_it() -> None:
    group = formed(A, B)
    seen = drop(finish(group, 1, "a", LIMITS), {"a"})
    assert find_change(seen, group, "b", LIMITS) is None
    assert reopen(seen, B, LIMITS, Ending()).stage is Stage.CLOSED


def test_a_group_is_still_if_every_member_with_running_workers_has_reported_it() -> None:
    group = formed(A, B, C)
    assert find_stillness(group) is None
    one = report_stillness(group, group.number, "a", "x")
    assert find_stillness(one) is None
    all_reported = report_stillness(
        finish(report_stillness(one, group.number, "b", "y"), 1, "c", LIMITS), group.number, "b", "z"
    )
    assert find_stillness(parse_round(render_round(all_reported))) == ("x", "z")
    assert find_stillness(report_stillness(all_reported, group.number, "a", None)) is None
    assert find_stillness(drop(all_reported, {"b"})) == ("x",)


def test_a_group_goes_on_without_a_lossy_agent_and_takes_it_in_once_it_is_well_connected() -> None:
    group = formed(A, B, C)
    seen = lose(group, Lost(lossy=frozenset("c")), LIMITS)
    assert find_change(seen, group, "a", LIMITS) == "too many packets of host-c were lost"
    assert find_change(seen, group, "c", LIMITS) == "the other nodes have dropped this one"
    waits = join(seen, C, LIMITS)
    again = form(join(join(reopen(waits, A, LIMITS, Ending()), C, LIMITS), B, LIMITS), LIMITS, time_is_up=False)
    assert (again.nodes, again.waiting) == (frozenset("ab"), (C,))
    assert find_change(again, again, "a", LIMITS) is None
    assert find_change(mark_lossy(again, (), "c"), again, "a", LIMITS) == "host-c is waiting to join"


def test_a_lossy_agent_takes_part_if_the_group_is_too_small_without_it() -> None:
    assert lose(formed(A, B), Lost(lossy=frozenset("b")), LIMITS) == formed(A, B)
    assert lose(formed(A, B, C), Lost(lossy=frozenset("bc")), LIMITS).nodes == frozenset("ac")
    left = join(lose(formed(A, B, C), Lost(lossy=frozenset("c")), LIMITS), C, LIMITS)
    assert form(reopen(drop(left, {"b"}), A, LIMITS, Ending()), LIMITS, time_is_up=True).nodes == frozenset("ac")


def test_at_most_64_lossy_agents_are_remembered() -> None:
    group = formed(A, B)
    for number in range(100):
        group = mark_lossy(group, {f"node-{number}"}, ())
    assert group.lossy == tuple(f"node-{number}" for number in range(36, 100))


def test_a_report_of_stillness_for_another_round_is_ignored() -> None:
    group = formed(A, B)
    assert report_stillness(group, group.number, "d", "x") == group
    assert report_stillness(group, group.number + 1, "a", "x") == group
    assert reopen(report_stillness(group, group.number, "a", "x"), A, LIMITS, Ending()).still == ()


def test_a_closed_rendezvous_takes_no_member_and_keeps_its_first_reason() -> None:
    closed = close(formed(A, B), "the first")
    assert close(closed, "another").reason == "the first"
    assert find_change(closed, formed(A, B), "a", LIMITS) == "the rendezvous is closed: the first"
    for changed in (
        join(closed, C, LIMITS),
        reopen(closed, A, LIMITS, Ending()),
        form(closed, LIMITS, time_is_up=True),
    ):
        assert changed == closed


def test_each_group_and_the_closing_take_the_next_epoch() -> None:
    group = replace(formed(A, B, C), epoch=1)
    assert form(join(reopen(drop(group, {"c"}), A, LIMITS, Ending()), B, LIMITS), LIMITS, time_is_up=False).epoch == 2
    assert reopen(group, A, LIMITS, Ending()).epoch == 1
    assert close(group, "over").epoch == 2


def test_the_next_store_begins_with_a_round_above_any_that_its_agent_can_have_missed() -> None:
    group = replace(formed(A, B, C), epoch=1)
    first = succeed(group, 2, "a", "host-a", may_return=False)
    assert (first.stage, first.epoch, first.awaited) == (Stage.OPEN, 2, frozenset("bc"))
    assert first.number > group.number + 100
    assert find_change(first, group, "b", LIMITS) == "another node has opened the next round"
    assert explain_lost_peers(first, group, "b") == "the group lost host-a, which served the rendezvous store"
    assert [each.node for each in find_missing(first, group)] == ["a"]
    again = form(join(join(first, C, LIMITS), B, LIMITS), LIMITS, time_is_up=False)
    assert (again.generation, again.epoch) == (2, 3)
    assert succeed(group, 2, "a", "host-a", may_return=True).awaited == frozenset("abc")


def test_the_next_store_keeps_finished_members_and_a_closed_rendezvous() -> None:
    group = finish(replace(formed(A, B), epoch=1), 1, "b", LIMITS)
    first = succeed(group, 2, "a", "host-a", may_return=False)
    assert (first.number, first.finished, first.nodes) == (0, frozenset("b"), frozenset("b"))
    assert succeed(close(group, "over"), 3, "a", "host-a", may_return=False).reason == "over"


def test_the_next_store_is_closed_if_its_agent_knows_only_that_a_member_had_finished() -> None:
    known = Round(generation=3, awaited=frozenset("abc"), finished=frozenset("b"))
    first = succeed(known, 2, "a", "host-a", may_return=True)
    assert (first.stage, first.epoch, first.reason) == (Stage.CLOSED, 2, "another node has finished its part")


def test_a_change_for_an_earlier_round_is_ignored() -> None:
    store = WorkersStore(address="a", port=1, by_agent=True)
    later = reopen(formed(A, B), A, LIMITS, Ending())
    assert publish_store(later, 0, store).store is None
    assert finish(formed(A, B), 0, "a", LIMITS).finished == frozenset()
    assert finish(later, 0, "a", LIMITS) == later


def test_a_silent_agent_that_had_finished_is_not_lost() -> None:
    group = formed(A, B, C)
    seen = lose(group, Lost(silent=frozenset("bc"), generation=1, finished=frozenset("cd")), LIMITS)
    assert (seen.nodes, seen.finished) == (frozenset("a"), frozenset("c"))
    assert [member.node for member in find_lost(seen, group)] == ["b"]


def test_a_late_success_closes_the_next_round_if_too_few_are_left() -> None:
    pair, three = (reopen(formed(*each), A, LIMITS, Ending()) for each in ((A, B), (A, B, C)))
    assert finish(pair, 1, "b", LIMITS).reason == "another node has finished its part"
    assert finish(three, 1, "b", LIMITS).awaited == frozenset("c")


def test_a_document_is_parsed_as_it_was_rendered_and_other_texts_are_refused() -> None:
    store = WorkersStore(address="a", port=1, by_agent=False)
    round_ = finish(publish_store(join(formed(A, B), C, LIMITS), 0, store), 1, "b", LIMITS)
    assert parse_round(render_round(round_)) == round_
    for text in ("", "[]", "{}", "7", '{"number": 1}', render_round(round_).replace("formed", "odd")):
        with pytest.raises(ValueError, match=r"."):
            parse_round(text)


def test_the_first_member_watches_all_others_and_they_watch_it() -> None:
    group = formed(A, B, C)
    assert watched_by(group, "a") == frozenset("bc")
    assert watched_by(group, "c") == frozenset("a")
    assert watched_by(drop(group, {"a"}), "b") == frozenset("c")


class Agents:
    """Agents that follow the protocol in any order over one document. Some fall silent forever."""

    def __init__(self, names: str, limits: Limits, draw: random.Random) -> None:
        self.limits, self.draw = limits, draw
        self.round = Round()
        self.alive = set(names)
        self.groups: dict[str, Round] = {}  # the round in which each agent runs
        self.formed: list[Round] = []

    def act(self, name: str) -> None:
        mine, group = member(name), self.groups.get(name)
        if group is None or find_change(self.round, group, name, self.limits) is not None:
            self.groups.pop(name, None)
            if group is not None and self.round.number == group.number:
                self.change(reopen(self.round, mine, self.limits, Ending()))
            self.change(join(self.round, mine, self.limits))
            self.change(form(self.round, self.limits, time_is_up=self.draw.random() < 0.2))
            if self.round.stage is Stage.FORMED and self.round.has(name):
                self.groups[name] = self.round
        silent = watched_by(self.round, name) - self.alive
        self.change(drop(self.round, silent))

    def change(self, after: Round) -> None:
        if after.stage is Stage.FORMED and self.round.stage is Stage.OPEN:
            self.formed.append(after)
        self.round = after


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 2), st.lists(st.integers(0, 5), max_size=120))
def test_any_order_of_events_makes_one_group_at_a_time_and_living_agents_find_each_other(
    seed: int, least: int, more: int, order: list[int]
) -> None:
    limits = Limits(min_nodes=least, max_nodes=least + more)
    agents = Agents("abcdef", limits, random.Random(seed))
    for turn, index in enumerate(order):
        name = "abcdef"[index]
        if agents.draw.random() < 0.05 and len(agents.alive) > least:
            agents.alive.discard(name)
        if name in agents.alive:
            agents.act(name)
        assert len({each.number for each in agents.formed}) == len(agents.formed), turn
    for _ in range(200):
        for name in sorted(agents.alive):
            agents.act(name)
    assert agents.round.stage is Stage.FORMED
    assert agents.round.nodes <= agents.alive
    assert len(agents.round.members) == min(limits.max_nodes, len(agents.alive))
    generations = [each.generation for each in agents.formed]
    assert generations == sorted(set(generations))
    for group in agents.formed:
        assert limits.min_nodes <= len(group.members) <= limits.max_nodes
        assert len(group.nodes) == len(group.members)


@given(st.integers(0, 2**32))
def test_members_of_the_same_round_always_agree_on_their_group(seed: int) -> None:
    draw = random.Random(seed)
    agents = Agents("abc", Limits(min_nodes=1, max_nodes=3), draw)
    for _ in range(60):
        name = draw.choice("abc")
        agents.act(name)
        for one in agents.groups.values():
            for other in agents.groups.values():
                same = replace(one, waiting=()).members == replace(other, waiting=()).members
                assert same or one.number != other.number


def test_a_group_that_never_lasts_forms_after_growing_pauses_and_is_closed_at_last() -> None:
    round_, pauses = formed(A, B), []
    ending = Ending(change="the group lost host-b", lasted=False)
    while (round_ := reopen(round_, A, LIMITS, ending)).stage is Stage.OPEN:
        pauses.append(pause_s(round_.short_lived))
        round_ = form(join(round_, B, LIMITS), LIMITS, time_is_up=False)
    assert pauses == [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, *[30.0] * 12]
    assert round_.reason == "21 generations in a row made no progress; the last ended because the group lost host-b"


def test_failures_of_workers_never_close_the_rendezvous() -> None:
    round_ = formed(A, B)
    for _ in range(50):
        open_ = reopen(round_, A, LIMITS, Ending(lasted=False))
        round_ = form(join(open_, B, LIMITS), LIMITS, time_is_up=False)
    assert (round_.stage, pause_s(round_.short_lived)) == (Stage.FORMED, 30.0)
    assert reopen(round_, A, LIMITS, Ending(change="host-c is waiting to join", lasted=True)).short_lived == 0


def test_lost_peers_are_explained_by_a_change_of_the_group_and_not_by_a_failure() -> None:
    group = formed(A, B, C)
    assert explain_lost_peers(group, group, "a") is None
    seen = drop(group, {"c"})
    assert explain_lost_peers(seen, group, "a") == "the group lost host-c"
    assert explain_lost_peers(seen, group, "c") == "the other nodes have dropped this one"
    assert explain_lost_peers(reopen(group, A, LIMITS, Ending()), group, "b") is None
    assert explain_lost_peers(reopen(seen, A, LIMITS, Ending()), group, "b") == "the group lost host-c"
    grown = Ending(change="host-d is waiting to join")
    assert explain_lost_peers(reopen(group, A, LIMITS, grown), group, "b") == "host-d is waiting to join"
    done = drop(finish(group, 1, "c", LIMITS), {"c"})
    assert explain_lost_peers(done, group, "a") is None
    lossy = join(lose(group, Lost(lossy=frozenset({"c"})), LIMITS), C, LIMITS)
    assert [member.node for member in lossy.waiting] == ["c"]
    assert explain_lost_peers(lossy, group, "a") == "too many packets of host-c were lost"
    assert explain_lost_peers(lossy, group, "c") == "the other nodes have dropped this one"


def test_a_group_can_do_without_agents_if_enough_others_are_left_or_waiting() -> None:
    group = formed(A, B, C)
    assert can_form_without(group, {"c"}, LIMITS)
    assert not can_form_without(group, {"b", "c"}, LIMITS)
    assert can_form_without(join(group, D, LIMITS), {"b", "c"}, LIMITS)
    assert can_form_without(group, set(), LIMITS)
    pair = formed(A, B)
    assert not can_form_without(pair, {"b"}, LIMITS)
    assert can_form_without(pair, {"a newcomer"}, LIMITS)
    assert can_form_without(reopen(pair, A, LIMITS, Ending()), {"b"}, LIMITS)


def test_no_group_can_form_again_once_a_member_has_finished() -> None:
    group = formed(A, B, C)
    assert not can_form_without(finish(group, 1, "a", LIMITS), {"c"}, LIMITS)


def test_a_later_incarnation_takes_the_place_of_an_earlier_one_that_never_joins_again() -> None:
    limits = Limits(min_nodes=1, max_nodes=3)
    old, new = (replace(member(name, node_rank=1), incarnation=number) for name, number in (("b", 1), ("x", 2)))
    group = formed(member("a", node_rank=0), old, limits=limits)
    seen = join(group, new, limits)
    assert seen.nodes == frozenset("a"), "the others notice at once that they lost the old one"
    assert find_lost(seen, group) == [old]
    assert find_successor(seen, old) == new
    assert join(seen, old, limits) == seen
    assert find_successor(seen, new) is None


def test_members_without_an_incarnation_or_a_replica_keep_their_places() -> None:
    first = replace(member("b", node_rank=1), incarnation=0)
    group = formed(member("a", node_rank=0), first)
    assert join(group, replace(member("x", node_rank=1), incarnation=2), LIMITS).nodes == group.nodes
    assert find_successor(group, replace(member("y"), incarnation=1)) is None


@pytest.mark.parametrize("count", [3, 8, 9, 40])
def test_all_agents_of_a_small_group_exchange_heartbeats_and_in_a_large_one_their_number_is_linear(count: int) -> None:
    names = [f"n{number:02}" for number in range(count)]
    members = tuple(Member(node=name, node_rank=rank, address=name, workers=1) for rank, name in enumerate(names))
    group = Round(stage=Stage.FORMED, size=count, members=members)
    linked = {name: linked_to(group, name, "n01") for name in names}
    assert all(name in linked[other] for name, others in linked.items() for other in others), "links are mutual"
    most = {len(linked[name]) for name in names[2:]}
    assert most == ({count - 1} if count <= 8 else {3, 4})
    assert {len(linked[name]) for name in names[:2]} == {count - 1}
