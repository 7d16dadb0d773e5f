"""Recorded output of three versions of Slurm gives the same observations."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.slurm.capacity import SlurmNode, choose_avoided, in_partition, parse_nodes, summarize
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.listing import (
    FIELDS,
    NAME_OF_ATTEMPT,
    SEPARATOR,
    SlurmJob,
    parse_accounting,
    parse_duration,
    parse_exit_code,
    parse_listing,
)
from orchestrator.backends.slurm.states import explain_pause, find_cause, meaning
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.specs.spec import Placement

RECORDS = Path(__file__).parent / "records"
VERSIONS = ("22.05", "24.11", "26.05")
RECORDED = (
    "JobArrayID",
    "JobID",
    "State",
    "Reason",
    "BatchHost",
    "NodeList",
    "RestartCnt",
    "exit_code",
    "StartTime",
    "EndTime",
    "Name",
    "Comment",
)
RECORDED_ACCOUNTING = ("JobIDRaw", "JobName", "State", "ExitCode", "NodeList", "Start", "End")
# Names that several jobs have, trials of a command, and jobs that only some versions accept.
PASSING = {"pending_resources", "het_job", "wrap", "sbatch", "feat.sh", "cpt.sh", "rootjob", "array3"}

# Scenario -> state, standing, exit code and signal, kind of the cause.
SEEN = {
    "completed": ("COMPLETED", "over", (0, 0), None),
    "step_fails_batch_ok": ("COMPLETED", "over", (0, 0), None),
    "exit3": ("CANCELLED", "over", (3, 0), "preempted"),  # requeued by hand, then cancelled while held
    "signal_warning": ("FAILED", "over", (5, 0), None),
    "killed_by_signal": ("FAILED", "over", (0, 9), None),
    "step_killed_by_signal": ("FAILED", "over", (139, 0), None),
    "launch_fail_output": ("FAILED", "over", (0, 53), "launch"),
    "launch_fail_chdir": ("FAILED", "over", (0, 53), "launch"),
    "running_2nodes": ("CANCELLED", "over", (0, 15), "preempted"),
    "cancelled_running": ("CANCELLED", "over", (0, 9), "preempted"),
    "cancelled_by_root": ("CANCELLED", "over", (0, 15), "preempted"),
    "cancelled_pending": ("CANCELLED", "over", (0, 0), "preempted"),
    "timeout": ("TIMEOUT", "over", (0, 15), "timeout"),
    "preempted_no_requeue": ("PREEMPTED", "over", (0, 15), "preempted"),
    "preempted_requeue": ("CANCELLED", "over", (0, 0), "preempted"),
    "node_fail_no_kill": ("CANCELLED", "over", (0, 15), "preempted"),
    "suspended": ("CANCELLED", "over", (0, 9), "preempted"),
    "pending_priority": ("CANCELLED", "over", (0, 0), "preempted"),
    "held_user": ("CANCELLED", "over", (0, 0), "preempted"),
}


def recorded(version: str) -> dict[str, SlurmJob]:
    text = (RECORDS / version / "listing.txt").read_text()
    jobs = parse_listing(text, fields=RECORDED, separator="|")
    return {job.name: job for job in jobs}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_scenario_is_parsed(version: str) -> None:
    jobs = recorded(version)
    observed = {}
    for name in SEEN.keys() & jobs.keys():
        job = jobs[name]
        cause = find_cause(job, notice_s=60, last_words="")
        kind = None if cause is None else cause.kind.value
        observed[name] = (job.state, meaning(job).standing.value, (job.exit_code, job.exit_signal), kind)
    assert observed == {name: SEEN[name] for name in observed}
    assert len(observed) >= 15


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_all_versions_are_parsed_alike(version: str) -> None:
    old, new = recorded("22.05"), recorded(version)
    same = old.keys() & new.keys() - PASSING - {"node_fail_no_requeue"}  # versions report different exit codes for it
    assert len(same) > 25
    for name in same:
        one, other = old[name], new[name]
        assert (one.state, one.exit_code, one.exit_signal) == (other.state, other.exit_code, other.exit_signal), name
        assert (len(one.nodes), one.restarts) == (len(other.nodes), other.restarts), name
        assert (one.comment, one.batch_host) == (other.comment, other.batch_host), name


def test_a_lost_node_is_the_cause_whatever_the_exit_code() -> None:
    jobs = [
        recorded(version)["node_fail_no_requeue"] for version in VERSIONS if "node_fail_no_requeue" in recorded(version)
    ]
    causes = [find_cause(job, notice_s=60, last_words="") for job in jobs]
    assert [cause.kind.value for cause in causes if cause] == ["node"] * len(jobs)
    assert jobs
    assert all(job.nodes == ("n2", "n3") for job in jobs)


@pytest.mark.parametrize("version", VERSIONS)
def test_accounting_has_the_same_final_states(version: str) -> None:
    accounting = {
        job.name: job
        for job in parse_accounting((RECORDS / version / "sacct.txt").read_text(), fields=RECORDED_ACCOUNTING)
    }
    expected = {"completed": "COMPLETED", "exit3": "FAILED", "timeout": "TIMEOUT", "cancelled_by_root": "CANCELLED"}
    there = expected.keys() & accounting.keys()
    assert len(there) >= 2
    assert {name: accounting[name].state for name in there} == {name: expected[name] for name in there}
    assert "exit3" not in accounting or accounting["exit3"].exit_code == 3
    assert accounting["cancelled_running"].nodes == ("n2", "n3")


@pytest.mark.parametrize("version", VERSIONS)
def test_accounting_names_the_user_who_cancelled_a_job(version: str) -> None:
    jobs = parse_accounting((RECORDS / version / "sacct.txt").read_text(), fields=RECORDED_ACCOUNTING)
    accounting = {job.name: job for job in jobs}
    assert (accounting["cancelled_running"].state, accounting["cancelled_running"].cancelled_by) == ("CANCELLED", 4242)
    assert accounting["dependency_kill_on_invalid"].cancelled_by is None, "Slurm cancelled it"
    assert {job.cancelled_by for job in jobs if job.state != "CANCELLED"} == {None}
    assert 0 in {job.cancelled_by for job in jobs}, "cancelled by root"


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_of_sbatch_are_told_apart_from_an_unreachable_controller(version: str) -> None:
    from orchestrator.backends.slurm.client import _FULL, _UNREACHABLE

    for error in json.loads((RECORDS / version / "errors.json").read_text()):
        unreachable = any(words in error["stderr"] for words in _UNREACHABLE)
        silent = error["stage"].startswith(("slurmctld", "munged"))
        assert unreachable == silent, error
        limited = error["stage"].startswith("qos") and "not allowed" not in error["stage"]
        assert any(words in error["stderr"] for words in _FULL) == (limited and error["rc"] != 0), error


def test_the_priority_shows_who_suspended_a_job() -> None:
    text = (RECORDS / "22.05" / "suspended_listing.txt").read_text()
    (suspended,) = parse_listing(text, separator="|")
    assert (suspended.state, suspended.priority, suspended.user, suspended.submitted_at) == (
        "SUSPENDED",
        0,
        0,
        1795619754,
    )
    assert explain_pause(suspended) == ("an administrator suspended Slurm job 1; resume it with `scontrol resume 1`")
    by_slurm = explain_pause(replace(suspended, priority=4294901759))
    assert by_slurm == "Slurm suspended job 1 to run another job, and will resume it"
    assert explain_pause(replace(suspended, priority=None)) == "Slurm job 1 is suspended"
    assert explain_pause(replace(suspended, state="RUNNING")) is None


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\x0b", "\r"])
def test_a_name_and_a_comment_may_hold_what_python_takes_for_the_end_of_a_line(separator: str) -> None:
    text = f"a{separator}b"
    values = {**dict.fromkeys(FIELDS, ""), "JobID": "12", "exit_code": "0:0", "Comment": text, "Name": text}
    (job,) = parse_listing(SEPARATOR.join([*values.values(), "\n"]))
    assert (job.name, job.comment) == (text, text)


def test_a_listing_with_other_columns_is_an_error() -> None:
    line = SEPARATOR.join(["12", "RUNNING", "None"]) + SEPARATOR
    with pytest.raises(ValueError, match="cannot parse"):
        parse_listing(line)
    whole = dict.fromkeys(FIELDS, "x") | {"JobID": "12", "Comment": f"odd{SEPARATOR}and long"}
    text = SEPARATOR.join(whole.values()) + f"{SEPARATOR}\nthe rest of somebody's comment\n"
    assert [(job.id, job.comment, job.started_at) for job in parse_listing(text)] == [
        (12, f"odd{SEPARATOR}and long", None)
    ]


def test_an_empty_comment_is_parsed() -> None:
    """Python counts the separator as white space."""
    whole = dict.fromkeys(FIELDS, "") | {"JobID": "12", "Name": "wrap"}
    assert [job.comment for job in parse_listing(SEPARATOR.join(whole.values()) + SEPARATOR)] == [""]


def test_jobs_of_other_names_are_skipped_and_invalid_lines_are_errors() -> None:
    def line(name: str, number: str = "12") -> str:
        whole = dict.fromkeys(FIELDS, "x") | {"JobID": number, "Name": name}
        return SEPARATOR.join(whole.values()) + SEPARATOR

    names = [str(AttemptKey("train-4fk2", 12)), "train-4fk2", "wrap", "-a1", "a-a1x"]
    text = "\n".join(map(line, names))
    assert [job.name for job in parse_listing(text, named=NAME_OF_ATTEMPT)] == names[:1]
    assert [job.name for job in parse_listing(text)] == names
    with pytest.raises(ValueError, match="cannot parse"):
        parse_listing(line("wrap", number="none"), named=NAME_OF_ATTEMPT)


@given(st.text(max_size=200))
def test_any_listing_is_parsed_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert all(isinstance(job.id, int) for job in parse_listing(text))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3]", "n1 n2 n3"),
        ("n[1-3,07],m", "n1 n2 n3 n07 m"),
        ("gpu-a[08-10]-ib", "gpu-a08-ib gpu-a09-ib gpu-a10-ib"),
        ("r[1-2]n[3-4]", "r1n3 r1n4 r2n3 r2n4"),
        ("", ""),
    ],
)
def test_host_lists_are_expanded(text: str, names: str) -> None:
    assert " ".join(parse_hostlist(text)) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a]", "n]1[", "n[1-999999999]"])
def test_an_invalid_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"hosts|brackets|long"):
        parse_hostlist(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:00", 60),
        ("5:00", 300),
        ("1:00:00", 3600),
        ("2-00:00:00", 172800),
        ("30", 1800),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_all_forms_of_time_limits_are_parsed(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "both"), [("768", (3, 0)), ("3:0", (3, 0)), ("9", (0, 9)), ("0:9", (0, 9)), ("", (0, 0))]
)
def test_exit_codes_of_old_and_new_versions_are_parsed(text: str, both: tuple[int, int]) -> None:
    assert parse_exit_code(text) == both


def test_nodes_are_summarized_by_partition_with_gpus_and_broken_nodes() -> None:
    rows = [
        ("n1", "main*", "idle", "8", "64000", "gpu:a100:4(S:0-1)", "none"),
        ("n2", "main*", "mixed", "8", "64000+", "gpu:a100:4,nvme:1", "none"),
        ("n3", "main*", "drained*", "8", "64000", "gpu:2", 'disk | "bad'),
        ("n3", "night", "drained*", "8", "64000", "gpu:2", 'disk | "bad'),
    ]
    nodes = parse_nodes("\n".join(SEPARATOR.join(row) + SEPARATOR for row in rows))
    main, night = summarize(nodes)
    assert (main.name, main.is_default, main.nodes, main.idle, main.gpus) == ("main", True, 3, 1, {"a100": 8, "gpu": 2})
    assert main.broken == {"n3": 'drained: disk | "bad'}
    assert (night.name, night.nodes) == ("night", 1)
    assert [node.name for node in in_partition(nodes, "night,main") if node.idle] == ["n1"]
    assert len(in_partition(nodes, None)) == 3


def a_node(name: str, state: str = "idle") -> SlurmNode:
    rest: dict[str, Any] = {"cpus": 8, "memory_mb": 64000, "gpus": (), "reason": None}
    return SlurmNode(name=name, partition="main", is_default=True, state=state, responds=True, **rest)


FOUR = [a_node("n1"), a_node("n2", "down"), a_node("n3"), a_node("n4")]


@pytest.mark.parametrize(
    ("avoided", "needed", "place", "chosen"),
    [
        (("n2", "n3"), 2, {}, ("n2", "n3")),
        (("n2", "n3"), 3, {}, ("n2",)),  # Slurm does not use the broken n2, so n3 is needed
        (("n2", "n3"), 4, {}, ()),
        (("n2", "n3"), 3, {"exclude": ("n4",)}, ()),
        (("n3", "n4"), 2, {"exclude": ("n4",)}, ()),
        (("n3", "n4"), 1, {"exclude": ("n4",)}, ("n3",)),
        (("n3",), 2, {"exclude": ("n[1,4]",)}, ()),
        (("n3",), 2, {"nodelist": ("n[3-4]",)}, ()),
        (("n3",), 2, {"nodelist": ("n3",)}, ()),
        (("gone", "n3"), 1, {}, ("n3",)),
        (("n3",), 9, {}, ()),
    ],
    ids=str,
)
def test_nodes_are_avoided_as_long_as_enough_others_remain(
    avoided: tuple[str, ...], needed: int, place: dict[str, Any], chosen: tuple[str, ...]
) -> None:
    assert choose_avoided(avoided, FOUR, Placement(**place), needed=needed) == chosen


def test_without_known_nodes_all_are_avoided() -> None:
    assert choose_avoided(("n3",), [], Placement(), needed=1) == ("n3",)
