"""Who serves the store of a generation's workers."""

from __future__ import annotations

from contextlib import closing

import pytest

from trainer.elastic.rendezvous.join import SingleNodeRendezvous
from trainer.elastic.rendezvous.round_document import Member, Round, Stage
from trainer.elastic.workers.workers import WorkersStoreHost, find_place


@pytest.mark.parametrize(
    ("workers", "may_spawn", "by_agent"),
    [
        ((1, 1), False, True),
        ((1, 1), True, False),  # a worker that spawns others serves their store
        ((1, 2), True, True),
        ((2, 1), False, True),
        ((1,), False, False),  # one rank needs no store
    ],
)
def test_the_agent_serves_the_store_unless_a_worker_may_have_to(
    workers: tuple[int, ...], may_spawn: bool, by_agent: bool
) -> None:
    members = tuple(
        Member(node=str(rank), node_rank=rank, address="127.0.0.1", workers=count) for rank, count in enumerate(workers)
    )
    place = find_place(Round(number=0, stage=Stage.FORMED, generation=1, members=members), "0")
    with closing(WorkersStoreHost(may_spawn=may_spawn)) as host:
        store = host.arrange(place, SingleNodeRendezvous(members[0]))
    assert store is not None
    assert store.by_agent is by_agent
