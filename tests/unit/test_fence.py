"""Which term may commit, and which snapshots of an earlier one count: small cases of tests/property/test_fence.py."""

from __future__ import annotations

import pytest

from trainer.contract.fence import Term, TermRecord, bound_of, counts, may_commit, parse_term

OLD, NEW = Term(1, 1), Term(1, 2)


def began(term: Term, base_step: int | None) -> TermRecord:
    return TermRecord(term=term, base_step=base_step)


@pytest.mark.parametrize("term", [Term(1, 0), Term(12, 345), Term(123456, 1)])
def test_a_term_is_found_again_by_its_files_name(term: Term) -> None:
    assert parse_term(term.file_name) == term


def test_who_was_overtaken_commits_no_more() -> None:
    assert may_commit(NEW, [OLD, NEW])
    assert may_commit(NEW, [])
    assert not may_commit(OLD, [OLD, NEW])
    assert not may_commit(OLD, [Term(2, 0)])


def test_what_is_beyond_the_base_of_a_later_term_does_not_count() -> None:
    records = [began(OLD, 0), began(NEW, 10), began(Term(2, 0), None), began(Term(2, 1), 20)]
    assert bound_of(OLD, records) == 10
    assert counts(OLD, 10, records)
    assert not counts(OLD, 11, records)
    assert bound_of(NEW, records) == 20


def test_a_term_that_nobody_followed_has_no_bound() -> None:
    records = [began(OLD, 5), began(NEW, 10)]
    assert bound_of(NEW, records) is None
    assert counts(NEW, 10**9, records)
    assert bound_of(NEW, [*records, began(Term(2, 0), None)]) is None, "an incarnation without a base sets no bound"
