"""Terms and snapshots under any interleaving: no group restores a snapshot of a fenced-off group.

A generation begins in two steps (choose a snapshot, then write its term down) and commits in two (check, then rename).
Others may commit in between. Of two generations that begin at once, only the later one does: if the earlier one wrote
its term down after the later one had chosen, its base could hide the snapshot that the later one restored.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.examples import LONG, examples
from trainer.contract.fence import Term, TermRecord, may_commit, parse_term
from trainer.contract.manifest import SnapshotName, parse_snapshot_name, restore_order

which = st.integers(min_value=0, max_value=9)  # an index, modulo the number of groups


@dataclass
class Group:
    """The workers of one generation. Stale ones may continue for any time."""

    term: Term
    restored: SnapshotName | None
    step: int
    checked: int | None = None  # a snapshot of this step has passed its check and is not renamed yet


class FenceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[TermRecord] = []
        self.committed: list[SnapshotName] = []
        self.choosing: Group | None = None  # it has chosen, but its term is not written down yet
        self.groups: list[Group] = []
        self.attempts = 0

    @initialize()
    def first_attempt(self) -> None:
        self.supervisor_fences()

    @rule()
    def supervisor_fences(self) -> None:
        self.attempts += 1
        self.records.append(TermRecord(term=Term(self.attempts, 0), base_step=None))

    @rule(late_by=st.sampled_from([0, 0, 0, 1]), back=st.sampled_from([0, 0, 1, 2]), at_once=st.booleans())
    def group_chooses(self, late_by: int, back: int, at_once: bool) -> None:
        """A new generation of the newest attempt, or of the one before it, which does not know that it is stale.

        `back`: its owner requested an older snapshot.
        """
        attempt = max(1, self.attempts - late_by)
        generations = [group.term.generation for group in self.groups if group.term.attempt == attempt]
        term = Term(attempt, max(generations, default=0) + 1)
        if may_commit(term, self._terms()):
            order = restore_order(self.committed, self.records)
            restored = order[min(back, len(order) - 1)] if order else None
            self.choosing = Group(term, restored, 0 if restored is None else restored.step)
        if at_once:
            self.group_begins()

    @rule()
    def group_begins(self) -> None:
        group, self.choosing = self.choosing, None
        if group is None:
            return
        self.records.append(TermRecord(term=group.term, base_step=group.step))
        self.groups.append(group)

    @rule(which=which, steps=st.integers(min_value=1, max_value=3), at_once=st.booleans())
    def group_checks_a_commit(self, which: int, steps: int, at_once: bool) -> None:
        if not self.groups:
            return
        group = self.groups[which % len(self.groups)]
        group.step += steps
        group.checked = group.step if may_commit(group.term, self._terms()) else None
        if at_once:
            self._commit(group)

    @rule(which=which)
    def group_commits(self, which: int) -> None:
        """Rename at any time after the check."""
        checked = [group for group in self.groups if group.checked is not None]
        if checked:
            self._commit(checked[which % len(checked)])

    @invariant()
    def nothing_stale_beyond_a_later_base_is_restored(self) -> None:
        for name in restore_order(self.committed, self.records):
            later = [group for group in self.groups if group.term > name.term]
            bases = [0 if group.restored is None else group.restored.step for group in later]
            assert all(name.step <= base for base in bases), f"{name} lies beyond one of {bases}"

    @invariant()
    def the_current_group_finds_its_own(self) -> None:
        if not self.groups:
            return
        current = max(self.groups, key=lambda group: group.term)
        order = restore_order(self.committed, self.records)
        own = {name for name in self.committed if name.term == current.term}
        assert own <= set(order), f"{own - set(order)} is lost"
        if current.restored is not None:
            assert current.restored in order, f"{current.term} restored {current.restored}, which is lost"
        if own:
            assert order[0] == max(own, key=lambda name: name.step), f"{order[0]} hides {own}"

    @invariant()
    def names_can_be_read_back(self) -> None:
        assert all(parse_snapshot_name(str(name)) == name for name in self.committed)
        assert all(parse_term(record.term.file_name) == record.term for record in self.records)

    def _commit(self, group: Group) -> None:
        if group.checked is not None:
            self.committed.append(SnapshotName(group.checked, group.term))
            group.checked = None

    def _terms(self) -> list[Term]:
        return [record.term for record in self.records]


TestTheFenceHolds = FenceMachine.TestCase
TestTheFenceHolds.settings = settings(
    max_examples=examples(200, 20_000),
    stateful_step_count=40,
    derandomize=not LONG,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
