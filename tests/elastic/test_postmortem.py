"""The failure of a dead worker, from its log and error file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.contract.failure import Failure, FailureKind, Pattern
from trainer.elastic.guard import parse_summary
from trainer.elastic.health.postmortem import (
    Death,
    Finding,
    exception_line,
    find_failure,
    first_cause,
    parse_traceback,
    read_steps,
)

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n'


def death(folder: Path, exit_code: int = 1, rank: int = 0) -> Death:
    return Death(rank=rank, local_rank=rank, exit_code=exit_code, folder=folder)


def test_the_last_traceback_includes_its_chain() -> None:
    chain = f"{TRACE}KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
    output = f"{TRACE}OSError: earlier, handled\nstep 1\n{chain}{TRACE}ValueError: b\n\nbye\n"
    traceback = parse_traceback(output)
    assert traceback == f"{chain}{TRACE}ValueError: b"
    assert exception_line(traceback) == "ValueError: b"


def test_output_without_a_traceback_has_none() -> None:
    assert parse_traceback("all is well\n") is None


def test_a_message_of_several_lines_gives_its_first(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{TRACE}RuntimeError: first\nsecond\n\nlater\n")
    failure = find_failure(death(tmp_path), {0: 7}).failure
    assert failure.message == "RuntimeError: first"
    assert (failure.traceback or "").endswith("first\nsecond")
    assert failure.step == 7


def test_an_error_file_goes_before_the_log(tmp_path: Path) -> None:
    details = {"py_callstack": f"{TRACE}ValueError: from the file\n", "timestamp": "1700000000"}
    (tmp_path / "error.json").write_text(json.dumps({"message": {"message": "x", "extraInfo": details}}))
    (tmp_path / "log").write_text(f"{TRACE}ValueError: from the log\n")
    finding = find_failure(death(tmp_path), {})
    assert finding.failure.message == "ValueError: from the file"
    assert finding.at_s == 1_700_000_000


def test_a_torn_error_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"message": {"mess')
    (tmp_path / "log").write_text("last words\n")
    assert find_failure(death(tmp_path, exit_code=3), {}).failure.message.endswith("exit code 3: last words")


def test_a_traceback_in_both_parts_of_a_cut_log_is_complete(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text("step\n" + TRACE)
    (tmp_path / "log").write_text("ValueError: b\n")
    assert find_failure(death(tmp_path), {}).failure.message == "ValueError: b"


def test_the_rank_that_torch_prints_before_each_line_is_removed(tmp_path: Path) -> None:
    lines = f"{TRACE}ValueError: b".splitlines()
    (tmp_path / "log").write_text("".join(f"[rank3]: {line}\n" for line in lines) + "[W1120 gloo] bye\n")
    failure = find_failure(death(tmp_path), {}).failure
    assert failure.message == "ValueError: b"
    assert (failure.traceback or "").startswith(TRACE)


def test_a_kill_is_not_explained_by_an_old_traceback(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{TRACE}ValueError: handled\n" + "step\n" * 40)
    failure = find_failure(death(tmp_path, exit_code=-9), {}).failure
    assert (failure.kind, failure.signal) == (FailureKind.UNKNOWN, "SIGKILL")


def test_an_abort_after_an_exception_is_explained_by_the_exception(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{TRACE}ValueError: b\nterminate called after throwing gloo::EnforceNotMet\n")
    failure = find_failure(death(tmp_path, exit_code=-6), {}).failure
    assert (failure.message, failure.signal, failure.kind) == ("ValueError: b", "SIGABRT", FailureKind.APPLICATION)


def test_a_segmentation_fault_is_not_explained_by_an_earlier_traceback(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{TRACE}ValueError: handled\nFatal Python error: Segmentation fault\n")
    failure = find_failure(death(tmp_path, exit_code=-11), {}).failure
    assert failure.message == "the worker was killed by SIGSEGV"


def test_a_full_disk_is_storage(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{TRACE}OSError: [Errno 28] No space left on device\n")
    assert find_failure(death(tmp_path), {}).failure.kind is FailureKind.STORAGE


def test_an_abort_is_explained_by_a_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "terminate called\n  what():  [Rank 0] Watchdog caught collective operation timeout: W\n"
    )
    failure = find_failure(death(tmp_path, exit_code=-6), {}).failure
    assert failure.kind is FailureKind.HANG
    assert failure.message.startswith("the worker was killed by SIGABRT: what():  [Rank 0] Watchdog caught")


def test_a_pattern_of_the_job_decides_the_kind(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{TRACE}LicenceError: no licence left\n")
    patterns = (Pattern("no licence left", FailureKind.INFRASTRUCTURE),)
    assert find_failure(death(tmp_path), {}, patterns=patterns).failure.kind is FailureKind.INFRASTRUCTURE
    assert find_failure(death(tmp_path), {}).failure.kind is FailureKind.APPLICATION


def test_a_survived_traceback_does_not_decide_the_kind(tmp_path: Path) -> None:
    log = f"{TRACE}OSError: [Errno 28] No space left on device\n" + "step\n" * 90
    (tmp_path / "log").write_text(log)
    assert find_failure(death(tmp_path, exit_code=-11), {}).failure.kind is FailureKind.APPLICATION


def test_a_rank_that_timed_out_in_a_collective_is_not_the_first_cause() -> None:
    waited = Failure(kind=FailureKind.HANG, message="timed out", rank=0, exit_code=-6, signal="SIGABRT")
    cause = Failure(kind=FailureKind.APPLICATION, message="ValueError: b", rank=1, exit_code=1)
    assert first_cause([Finding(failure=waited, at_s=None), Finding(failure=cause, at_s=9.0)]) is cause


def test_the_rank_whose_own_loss_is_nan_is_the_first_cause() -> None:
    found = "trainer.errors.NonFiniteLoss: loss is nan and the gradient's norm nan at step 3"
    echo = Failure(kind=FailureKind.NUMERIC, message=f"{found}; look at rank 1", rank=0)
    cause = Failure(kind=FailureKind.NUMERIC, message=f"{found}; the loss of this rank is not finite", rank=1)
    assert first_cause([Finding(failure=echo, at_s=8.0), Finding(failure=cause, at_s=9.0)]) is cause


def test_a_rank_that_lost_its_peer_is_not_the_first_cause() -> None:
    lost = Failure(kind=FailureKind.APPLICATION, message="RuntimeError: Connection closed by peer", rank=0, exit_code=1)
    late = Failure(kind=FailureKind.APPLICATION, message="ValueError: late", rank=1, exit_code=1)
    early = Failure(kind=FailureKind.APPLICATION, message="ValueError: early", rank=2, exit_code=1)
    killed = Failure(kind=FailureKind.UNKNOWN, message="killed", rank=3, exit_code=-9, signal="SIGKILL")
    findings = [Finding(failure=f, at_s=at) for f, at in ((lost, 1.0), (late, 9.0), (early, 5.0))]
    assert first_cause(findings) is early
    assert first_cause([*findings, Finding(failure=killed, at_s=None)]) is killed


def test_the_newest_step_of_each_rank_is_read_despite_torn_lines(tmp_path: Path) -> None:
    lines = [
        json.dumps({"at": "", "rank": rank, "phase": "step", "step": step})
        for rank, step in ((0, 4), (1, 3), (0, 5), (None, 7), ([], 8))
    ]
    (tmp_path / "p").write_text('": 9}\n' + "\n".join(lines) + '\n{"at": "", "ra')
    assert read_steps(tmp_path / "p").of(None) == {0: 5, 1: 3}


def test_steps_of_earlier_generations_are_not_those_of_the_generation_that_failed(tmp_path: Path) -> None:
    """Generation 2 repeats the steps since a snapshot of step 2, and has repeated one of them on one rank."""
    lines = [
        json.dumps({"at": "", "rank": rank, "generation": generation, "phase": "step", "step": step})
        for rank, generation, step in ((0, 1, 5), (1, 1, 5), (0, 2, 3))
    ]
    (tmp_path / "p").write_text("\n".join(lines) + "\n")
    steps = read_steps(tmp_path / "p")
    assert (steps.of(2), steps.of(1), steps.of(3)) == ({0: 3}, {0: 5, 1: 5}, {})
    assert steps.highest == 5


def test_ranks_and_exit_codes_are_read_from_torchruns_summary(tmp_path: Path) -> None:
    entry = "  rank      : {0} (local_rank: {0})\n  exitcode  : {1} (pid: 9) x\n"
    summary = "Failures:\n" + entry.format(0, -signal.SIGTERM) + "Root Cause\n" + entry.format(1, -signal.SIGKILL)
    assert [(d.rank, d.exit_code) for d in parse_summary(summary, tmp_path)] == [(1, -9)]
    assert parse_summary("no summary", tmp_path) == []


def test_a_death_is_explained_despite_a_broken_journal_and_pipes_in_place_of_logs(tmp_path: Path) -> None:
    """A worker may write anything and replace any file in its folder."""
    (tmp_path / "progress.jsonl").write_text('{"rank": 0, "step": 3}\n' + "[" * 50_000 + "\nnull\n")
    assert read_steps(tmp_path / "progress.jsonl").of(None) == {0: 3}
    for name in ("log", "log.1", "error.json", "pipe.jsonl"):
        os.mkfifo(tmp_path / name)
    assert read_steps(tmp_path / "pipe.jsonl").highest is None
    assert find_failure(death(tmp_path, exit_code=3), {}).failure.message.endswith("exit code 3")


@pytest.mark.parametrize(
    "save", ["import torch; torch.save(torch.zeros(10_000_000), path)", "open(path, 'wb').write(bytes(40_000_000))"]
)
@pytest.mark.parametrize("is_shown", [True, False])
def test_a_full_file_system_is_named(tmp_path: Path, small_disk: Path, save: str, is_shown: bool) -> None:
    """The error of torch.save does not say that the disk is full, and that of write(2) does not say which."""
    path = repr(str(small_disk / "checkpoint.pt"))
    save = save.replace("path", path) if is_shown else save
    script = tmp_path / "script.py"
    script.write_text(f"path = {path}\n{save}\n")
    with (tmp_path / "log").open("wb") as log:
        ended = subprocess.run([sys.executable, script], stderr=log, check=False, timeout=300)
    failure = find_failure(death(tmp_path, exit_code=ended.returncode), {}).failure
    assert failure.kind is FailureKind.STORAGE
    assert f"(No space left on device: {small_disk}" in failure.message


def test_another_error_of_storage_is_not_blamed_on_a_full_file_system(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "rest").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    (tmp_path / "log").write_text(f"{TRACE}OSError: [Errno 5] Input/output error\n")
    failure = find_failure(death(tmp_path), {}).failure
    assert (failure.kind, failure.message) == (FailureKind.STORAGE, "OSError: [Errno 5] Input/output error")
