"""Secrets are masked in every form, and nothing else is changed."""

from __future__ import annotations

import base64
import json
import string
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.job.event import Event
from orchestrator.domain.job.masking import MASK, NOTHING, Mask
from tests.builders import NOW
from trainer.contract.exit_record import ExitRecord, JournalEvent, Outcome
from trainer.contract.failure import Failure, FailureKind

SECRET = 'pa"ss/wörd 100%'
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nshort\n-----END KEY-----\n"


def test_a_secret_is_hidden_in_each_shape_in_which_programs_print_it() -> None:
    mask = Mask([SECRET])
    for shape in (
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
    ):
        shown = mask.hide(f"before {shape} after")
        assert shape not in shown
        assert shown.startswith(f"before {MASK}")


def test_the_lines_of_a_long_secret_are_hidden_one_by_one() -> None:
    mask = Mask([PEM])
    assert mask.hide("MIIEvQIBADANBg") == MASK
    assert mask.hide("short") == "short", "a short line appears too often by chance"


def test_the_longer_of_two_secrets_is_hidden_as_a_whole() -> None:
    assert Mask(["abcdefgh", "abcdefgh-and-more"]).hide("x abcdefgh-and-more") == f"x {MASK}"


def test_nothing_is_hidden_where_there_are_no_secrets() -> None:
    assert not NOTHING
    assert Mask([SECRET])
    event = JournalEvent(at="t", kind="k", sentence=SECRET, generation=1, evidence={"a": [SECRET]})
    record = ExitRecord(outcome=Outcome.FAILED, at="t", generation=1, restarts=0)
    assert NOTHING.hide(SECRET) == SECRET
    assert NOTHING.hide_in_event(event) is event
    assert NOTHING.hide_in({"a": 1}) == {"a": 1}
    assert NOTHING.hide_in_exit(record) is record
    assert Mask([SECRET]).hide_in_exit(record) is record
    assert Mask([SECRET]).hide_in_exit(None) is None


def test_events_and_failures_are_cleaned_in_every_part() -> None:
    mask = Mask([SECRET])
    dirty = {SECRET: [{"b": SECRET}, 7, None, True], "plain": 1.5}
    clean = {MASK: [{"b": MASK}, 7, None, True], "plain": 1.5}
    told = mask.hide_in_event(JournalEvent(at="t", kind="k", sentence=f"x {SECRET}", generation=3, evidence=dirty))
    assert (told.sentence, told.evidence, told.generation) == (f"x {MASK}", clean, 3)
    account = mask.hide_in_event(Event(at=NOW, kind="k", sentence=SECRET, evidence=dirty, actor="alice"))
    assert (account.sentence, account.evidence, account.actor) == (MASK, clean, "alice")
    failure = Failure(kind=FailureKind.APPLICATION, message=SECRET, traceback=f"raise X({SECRET})", rank=1)
    record = mask.hide_in_exit(ExitRecord(outcome=Outcome.FAILED, at="t", generation=1, restarts=0, failure=failure))
    assert record is not None
    assert record.failure is not None
    assert (record.failure.message, record.failure.traceback, record.failure.rank) == (MASK, f"raise X({MASK})", 1)
    bare = mask.hide_in_failure(Failure(kind=FailureKind.HANG, message="m"))
    assert bare == Failure(kind=FailureKind.HANG, message="m")
    assert mask.hide_in_failure(None) is None
    assert mask.hide_in((SECRET,)) == [MASK]


@given(
    secret=st.text(alphabet=sorted(set(string.printable.strip()) - {"*"}), min_size=8, max_size=40),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_no_secret_passes_whatever_stands_around_it(secret: str, before: str, after: str) -> None:
    assert secret not in Mask([secret]).hide(before + secret + after)
