"""What `why` says of workers that report no steps."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from orchestrator.domain.accounting.chronicle import Chronicle
from orchestrator.domain.accounting.goodput import Bin, Ledger
from orchestrator.domain.accounting.life import Life
from orchestrator.domain.explanation.quiet import Output, find_quiet, tell_quiet
from orchestrator.domain.explanation.why import explain
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.job import JobState
from tests.builders import NOW, at, make_attempt, make_job, make_spec

RUNNING = make_attempt(state=AttemptState.RUNNING, started_at=at(0))
LIFE = Life(created_at=at(0), ended_at=None, devices=1)
NO_STEPS = "The script reports no steps."
WATCHED = (
    "A hang is noticed once no worker prints, computes or reads for 15 min while one waits for another or for data."
)


def text(output: Output | None, *, seconds: float = 840, **spec: Any) -> str:
    return tell_quiet(make_spec(**{"run": {"script": "train.py"}, **spec}), RUNNING, output, at(seconds))


def test_the_age_of_the_last_output_and_the_watch_are_named() -> None:
    assert text(Output(at=at(0), worker="rank 0")) == f"{NO_STEPS} Its last output was 14 min ago (rank 0). {WATCHED}"


@pytest.mark.parametrize(
    ("started_at", "since"), [(None, "it started 45 s ago"), (at(30), "its workers started 15 s ago")]
)
def test_a_program_that_printed_nothing_is_quiet_since_its_start(started_at: datetime | None, since: str) -> None:
    sentence = text(Output(at=None, started_at=started_at), seconds=45)
    assert sentence == f"{NO_STEPS} It has printed nothing since {since}. {WATCHED}"


def test_unknown_output_is_not_claimed() -> None:
    assert text(None) == f"{NO_STEPS} It is not known when it last printed. {WATCHED}"


def test_an_output_from_the_future_is_zero_seconds_old() -> None:
    assert "0 s ago" in text(Output(at=at(9999), worker="rank 0"))


@pytest.mark.parametrize(
    ("limit", "words"),
    [(60, "60 s"), (300, "5 min"), (150, "150 s"), ("auto", "15 min while one waits for another or for data")],
)
def test_the_owners_limit_is_named(limit: float | str, words: str) -> None:
    assert text(None, supervise={"heartbeat_timeout_s": limit}).endswith(f"prints, computes or reads for {words}.")


def test_torchrun_does_not_watch_for_hangs() -> None:
    sentence = text(None, launcher="torchrun", supervise={"heartbeat_timeout_s": 60})
    assert sentence.endswith(
        "Launcher torchrun does not watch for hangs; torch's own timeouts end a collective after 30 min (gloo) or "
        "10 min (NCCL)."
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"module": "train"}, "The module reports no steps."),
        ({"command": ["./train"]}, "The command reports no steps."),
        ({"trainer": {}}, "The trainer has reported no step yet."),
    ],
)
def test_the_program_is_named_by_its_kind(run: dict[str, object], words: str) -> None:
    assert text(None, run=run).startswith(words)


def chronicle(state: JobState = JobState.RUNNING, **fields: Any) -> Chronicle:
    job = make_job(state=state, reason="the workers are running")
    return Chronicle(**{"job": job, "attempts": [RUNNING], "events": [], "kept": {}, "heard_at": {}, **fields})


def test_only_a_running_attempt_without_reports_is_quiet() -> None:
    assert find_quiet(chronicle()) == RUNNING
    assert find_quiet(chronicle(reported=frozenset({1}))) is None
    assert find_quiet(chronicle(JobState.RECOVERING)) is None
    assert find_quiet(chronicle(attempts=[])) is None
    assert find_quiet(chronicle(attempts=[make_attempt(state=AttemptState.LOST)])) is None
    newer = make_attempt(number=2, state=AttemptState.RUNNING)
    assert find_quiet(chronicle(attempts=[RUNNING, newer], reported=frozenset({1}))) == newer


def ledger(**bins: int) -> Ledger:
    return Ledger(bins={Bin(name): seconds * 10**6 for name, seconds in bins.items()}, whole_us=60 * 10**6)


def test_losses_of_a_quiet_program_are_not_reported() -> None:
    not_reported = "not reported, because the workers report no steps"
    assert explain(chronicle(), LIFE, ledger(untold=60), NOW).lost == not_reported
    assert explain(chronicle(), LIFE, ledger(productive=60), NOW).lost == "nothing"
    assert explain(chronicle(), LIFE, ledger(untold=40, recovering=20), NOW).lost == (
        "20.0 of 60.0 device-seconds (20.0 recovering). The rest is not reported, because the workers report no steps"
    )


@pytest.mark.parametrize(("launcher", "command"), [("elasticrun", "stacks"), ("torchrun", "logs")])
def test_a_quiet_jobs_owner_learns_where_to_look(launcher: str, command: str) -> None:
    job = make_job(spec=make_spec(launcher=launcher), state=JobState.RUNNING)
    why = explain(chronicle(job=job), LIFE, Ledger(), NOW, quiet="The command reports no steps.")
    assert why.quiet == "The command reports no steps."
    assert why.next == f"Nothing to do. To see what the job does, run `orchestrator {command} job-1`."
    assert explain(chronicle(job=job), LIFE, Ledger(), NOW).next == "Nothing to do."
