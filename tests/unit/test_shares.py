"""Device time by user, project, node and cause: the shares add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.accounting.breakdown import Grouping, Holding, Prices, Share, share_out
from orchestrator.domain.accounting.goodput import Bin, Stretch, add_up, clip
from orchestrator.domain.accounting.life import Life, lay_out
from tests.builders import at
from tests.unit.lives import attempt, lives, trained
from trainer.contract.failure import FailureKind


def stretch(into: Bin, since: float, until: float, **fields: object) -> Stretch:
    return Stretch(**{"bin": into, "since": at(since), "until": at(until), "devices": 2, "used": 2, **fields})  # type: ignore[arg-type]


def holding(*stretches: Stretch, **fields: object) -> Holding:
    values = {"job_id": "a", "user": "ann", "project": "vision", "cluster": "lab", "stretches": stretches}
    return Holding(**{**values, **fields})  # type: ignore[arg-type]


def hours(holdings: Sequence[Holding], by: Grouping) -> dict[str | None, float]:
    return {share.name: share.ledger.whole_us / 3.6e9 for share in share_out(holdings, by).items}


def bins(share: Share) -> dict[Bin, float]:
    return {into: us / 1e6 for into, us in share.ledger.bins.items() if us}


@given(st.lists(lives(), max_size=3), st.floats(-10, 3000), st.floats(0, 3000), st.sampled_from(Grouping))
def test_the_shares_of_every_grouping_add_up_to_the_ledgers(
    drawn: list[Life], since: float, lasts: float, by: Grouping
) -> None:
    window = at(since), at(since + lasts)
    holdings = [
        holding(*clip(lay_out(life, at(2500)), *window), job_id=str(number), user=None if number else "ann")
        for number, life in enumerate(drawn)
    ]
    ledgers = [add_up(each.stretches) for each in holdings]
    expected = sum((Counter(ledger.bins) for ledger in ledgers), Counter())
    shares = share_out(holdings, by)
    assert sum((Counter(share.ledger.bins) for share in shares.items), Counter()) == expected
    assert all(share.ledger.whole_us == sum(share.ledger.bins.values()) for share in shares.items)
    assert min((amount for share in shares.items for amount in share.ledger.bins.values()), default=0) >= 0
    assert shares.total.ledger.bins == {each: expected[each] for each in Bin}


def test_a_share_has_the_name_of_its_group() -> None:
    holdings = [
        holding(stretch(Bin.PRODUCTIVE, 0, 3600), job_id="a"),
        holding(stretch(Bin.QUEUE, 0, 1800), job_id="b", user="bob", cluster="cloud"),
        holding(stretch(Bin.IDLE, 0, 900), job_id="c", user=None, project="speech"),
    ]
    assert hours(holdings, Grouping.USER) == {"ann": 2, "bob": 1, None: 0.5}
    assert hours(holdings, Grouping.PROJECT) == {"vision": 3, "speech": 0.5}
    assert hours(holdings, Grouping.CLUSTER) == {"lab": 2.5, "cloud": 1}
    assert hours(holdings, Grouping.JOB) == {"a": 2, "b": 1, "c": 0.5}
    assert [len(share.job_ids) for share in share_out(holdings, Grouping.PROJECT).items] == [2, 1]


def test_the_largest_share_comes_first_and_equal_ones_by_name() -> None:
    holdings = [
        holding(stretch(Bin.QUEUE, 0, 10 * size), job_id=name, project=name)
        for name, size in zip("bca", (1, 2, 1), strict=True)
    ]
    assert [share.name for share in share_out(holdings, Grouping.PROJECT).items] == ["c", "a", "b"]


def test_nodes_have_the_time_of_their_workers_and_the_rest_has_no_node() -> None:
    held = holding(
        stretch(Bin.QUEUE, 0, 10, nodes={"n1": 1}),
        stretch(Bin.PRODUCTIVE, 10, 40, devices=4, used=3, stall_s=3.0, nodes={"n1": 2, "n2": 1}),
        stretch(Bin.START_UP, 40, 50),
    )
    found = {share.name: bins(share) for share in share_out([held], Grouping.NODE).items}
    assert found == {
        "n1": {Bin.PRODUCTIVE: 54, Bin.SNAPSHOT_STALL: 6},
        "n2": {Bin.PRODUCTIVE: 27, Bin.SNAPSHOT_STALL: 3},
        None: {Bin.QUEUE: 20, Bin.IDLE: 30, Bin.START_UP: 20},
    }


def test_a_microsecond_that_nodes_cannot_divide_is_not_lost() -> None:
    odd = holding(stretch(Bin.PRODUCTIVE, 0, 1e-6, devices=1, used=1, nodes={"n1": 1, "n2": 1, "n3": 1}))
    assert sum(share.ledger.whole_us for share in share_out([odd], Grouping.NODE).items) == 1


def test_a_cause_has_only_its_own_losses() -> None:
    held = holding(
        stretch(Bin.PRODUCTIVE, 0, 10),
        stretch(Bin.RE_DONE, 10, 12, used=1, cause=FailureKind.NODE),
        stretch(Bin.RECOVERING, 12, 20, cause=FailureKind.HANG),
    )
    found = {share.name: bins(share) for share in share_out([held], Grouping.CAUSE).items}
    assert found == {
        None: {Bin.PRODUCTIVE: 20, Bin.IDLE: 2},
        "node": {Bin.RE_DONE: 2},
        "hang": {Bin.RECOVERING: 16},
    }


def test_held_time_has_a_price_and_unproductive_time_is_lost_cost() -> None:
    holdings = [
        holding(stretch(Bin.QUEUE, 0, 3600), stretch(Bin.PRODUCTIVE, 3600, 7200), stretch(Bin.STALLED, 7200, 9000)),
        holding(stretch(Bin.PRODUCTIVE, 0, 3600), job_id="b", cluster="cloud"),
        holding(stretch(Bin.PRODUCTIVE, 0, 3600), job_id="c", cluster="gift"),
    ]
    prices = Prices(currency="EUR", device_hour=2.0, clusters={"cloud": 5.0, "gift": 0.0})
    shares = share_out(holdings, Grouping.PROJECT, prices)
    (share,) = shares.items
    assert (share.cost, share.lost_cost) == (pytest.approx(6 + 10), pytest.approx(2))
    assert (shares.total.cost, shares.total.lost_cost) == (pytest.approx(16), pytest.approx(2))
    assert shares.total.job_ids == {"a", "b", "c"}
    assert share_out(holdings, Grouping.PROJECT).total.cost == 0


def test_a_gain_belongs_to_jobs_and_not_to_nodes_or_causes() -> None:
    holdings = [
        holding(stretch(Bin.PRODUCTIVE, 0, 10, nodes={"n1": 1}), gain_us=7),
        holding(stretch(Bin.PRODUCTIVE, 0, 10), job_id="b", gain_us=5),
        holding(stretch(Bin.PRODUCTIVE, 0, 10), job_id="c", project="speech"),
    ]
    by_project, by_node = (share_out(holdings, by) for by in (Grouping.PROJECT, Grouping.NODE))
    assert {share.name: share.gain_us for share in by_project.items} == {"vision": 12, "speech": None}
    assert [share.gain_us for share in by_node.items] == [None, None]
    assert (by_project.total.gain_us, by_node.total.gain_us) == (12, 12)
    assert share_out(holdings[2:], Grouping.NODE).total.gain_us is None


def test_a_window_cuts_stretches_and_their_stalls() -> None:
    life = (stretch(Bin.QUEUE, 0, 10), stretch(Bin.PRODUCTIVE, 10, 30, stall_s=4.0), stretch(Bin.IDLE, 30, 40))
    cut = clip(life, at(10), at(15))
    assert [(each.bin, each.since, each.until, each.stall_s) for each in cut] == [(Bin.PRODUCTIVE, at(10), at(15), 1.0)]
    assert clip(life, at(40), at(50)) == ()
    assert clip(life, at(-5), at(50)) == life


def test_losses_have_the_failure_before_them_as_cause() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(12), cause=FailureKind.APPLICATION)
    second = trained(2, since=15, steps=5, noticed_at=at(12), restored_at=at(14), cause=FailureKind.NUMERIC)
    third = trained(1, since=40, steps=5)
    attempts = (
        attempt(1, 0, 30, first, second, cause=FailureKind.NODE, heard_at=at(22)),
        attempt(2, 33, None, third, agent_at=at(34), ready_at=at(35)),
    )
    stretches = lay_out(Life(created_at=at(0), ended_at=None, devices=2, attempts=attempts), at(45))
    assert [(each.bin, each.cause) for each in stretches if each.bin is not Bin.PRODUCTIVE] == [
        (Bin.RE_DONE, FailureKind.APPLICATION),
        (Bin.RECOVERING, FailureKind.APPLICATION),
        (Bin.RE_DONE, FailureKind.NODE),
        (Bin.STALLED, FailureKind.NODE),
        *[(Bin.RECOVERING, FailureKind.NODE)] * 4,
    ]


def test_a_failure_during_a_recovery_is_a_new_cause() -> None:
    first = trained(1, since=0, steps=10, failed_at=at(12), cause=FailureKind.HANG)
    second = trained(
        2,
        since=15,
        steps=5,
        started_at=at(14),
        noticed_at=at(12),
        kept=None,
        failed_at=at(16),
        cause=FailureKind.STORAGE,
    )
    third = trained(3, since=20, steps=5, noticed_at=at(16))
    life = Life(created_at=at(0), ended_at=None, devices=2, attempts=(attempt(1, 0, None, first, second, third),))
    lost = [(each.since, each.cause) for each in lay_out(life, at(25)) if each.bin is Bin.RECOVERING]
    assert lost == [
        (at(12), FailureKind.HANG),
        (at(14), FailureKind.HANG),
        (at(16), FailureKind.STORAGE),
    ]


def test_a_failed_job_has_no_recovery_at_its_end() -> None:
    one = trained(1, since=0, steps=10, failed_at=at(12), cause=FailureKind.NODE)
    life = Life(
        created_at=at(0), ended_at=at(14), devices=2, attempts=(attempt(1, 0, 13, one, cause=FailureKind.NODE),)
    )
    assert [(each.bin, each.cause) for each in lay_out(life, at(20))][-2:] == [(Bin.IDLE, None), (Bin.IDLE, None)]


def test_a_stretch_has_the_nodes_of_its_generation_or_of_its_attempt() -> None:
    one = trained(1, since=10, steps=5, started_at=at(8), nodes={"n1": 1, "n2": 3})
    attempts = (attempt(1, 5, None, one, agent_at=at(6), nodes=("n1", "n2")),)
    stretches = lay_out(Life(created_at=at(0), ended_at=None, devices=2, attempts=attempts), at(15))
    assert [(each.bin, dict(each.nodes)) for each in stretches] == [
        (Bin.QUEUE, {}),
        (Bin.START_UP, {"n1": 1, "n2": 1}),
        (Bin.START_UP, {"n1": 1, "n2": 1}),
        (Bin.LOAD, {"n1": 1, "n2": 3}),
        (Bin.PRODUCTIVE, {"n1": 1, "n2": 3}),
    ]
