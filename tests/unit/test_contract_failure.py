"""Classification of a worker's last lines: one row for each pattern, and lines that must not match."""

from __future__ import annotations

import pytest

from trainer.contract.failure import (
    PATTERNS,
    Failure,
    FailureKind,
    Pattern,
    classify_failure,
    describe_end,
    find_telling_line,
    is_collateral,
    is_echo,
    is_stop,
    name_cause,
    parse_failure,
    parse_pattern,
    render_pattern,
)

FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 9, in step\n    raise Oom("CUDA out of memory")\n'
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp"
TELLING = [
    ("HOST_OOM", "RuntimeError: unable to write to file </torch_17_3>: No space left on device (28)"),
    ("HOST_OOM", "NCCL WARN Error while creating /dev/shm/nccl-x7 (size 9637888): No space left on device"),
    ("HOST_OOM", "ERROR: Unexpected bus error encountered in worker. caused by insufficient shared memory (shm)."),
    ("HOST_OOM", "RuntimeError: DataLoader worker (pid 325) is killed by signal: Killed. "),
    ("HOST_OOM", "RuntimeError: DataLoader worker (pid 325) is killed by signal: Bus error. It is possible that"),
    ("STORAGE", "OSError: [Errno 28] No space left on device: '/data/x'"),
    ("STORAGE", "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
    ("STORAGE", "RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed"),
    ("STORAGE", "OSError: [Errno 122] Disk quota exceeded"),
    ("STORAGE", "OSError: [Errno 30] Read-only file system: '/runs'"),
    ("STORAGE", "OSError: [Errno 116] Stale file handle"),
    ("STORAGE", "OSError: [Errno 5] Input/output error: '/data/shard-7'"),
    ("STORAGE", "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/lustre/data'"),
    ("STORAGE", "ls: cannot access '/mnt/ckpt': Transport endpoint is not connected"),
    ("STORAGE", "trainer.errors.SnapshotError: training ended at step 8, and its last snapshot could not be written"),
    ("STORAGE", "trainer: SnapshotError: snapshots cannot be written to /runs"),
    ("DEVICE_OOM", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("DEVICE_OOM", "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB."),
    ("DEVICE_OOM", "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory"),
    ("DEVICE_OOM", "RuntimeError: CUDA error: out of memory"),
    ("DEVICE_OOM", "what(): cudaErrorMemoryAllocation: out of memory"),
    ("DEVICE_OOM", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("DEVICE_OOM", "NCCL WARN Cuda failure 2 'out of memory'"),
    ("HOST_OOM", "MemoryError"),
    ("HOST_OOM", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 93.1 GiB for an array"),
    ("HOST_OOM", "RuntimeError: [enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you"),
    ("HOST_OOM", "what():  std::bad_alloc"),
    ("HOST_OOM", "OSError: [Errno 12] Cannot allocate memory"),
    ("NODE", "NVRM: Xid (PCI:0000:03:00): 48, pid=1234, DBE (double bit error)"),
    ("NODE", "NVRM: GPU at PCI:0000:03:00: GPU has fallen off the bus."),
    ("NODE", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("NODE", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("NODE", "RuntimeError: CUDA error: system not yet initialized"),
    ("NODE", "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"),
    ("NUMERIC", "trainer: NonFiniteLoss: loss is nan and the gradient's norm nan at step 3"),
    ("NUMERIC", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
    ("NUMERIC", "ValueError: The loss returned in `training_step` is nan."),
    ("NUMERIC", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
    ("NUMERIC", "AssertionError: Rank 3: found NaN in local grad norm in backward pass"),
    ("RENDEZVOUS", "torch.distributed.DistNetworkError: port: 29500, useIpv6: false, code: -98, name: EADDRINUSE"),
    ("RENDEZVOUS", "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("RENDEZVOUS", "The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500)."),
    ("HANG", "what(): [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE"),
    ("HANG", "[PG ID 0 Rank 7] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"),
    ("HANG", f"RuntimeError: {GLOO}/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
    ("HANG", f"RuntimeError: {GLOO}/pair.cc:589] Application timeout caused pair closure"),
    ("HANG", "RuntimeError: Rank 1 failed to pass monitoredBarrier in 3000 ms"),
    ("HANG", "RuntimeError: Rank 0 timed out in monitoredBarrier after 3000 ms."),
    ("LAUNCH", "python: can't open file '/jobs/train.py': [Errno 2] No such file or directory"),
    ("LAUNCH", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("LAUNCH", "OSError: [Errno 8] Exec format error: '/opt/run'"),
    ("LAUNCH", "python: error while loading shared libraries: libcudart.so.12: cannot open shared object file"),
    ("UNKNOWN", "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL"),
]


@pytest.mark.parametrize(("kind", "line"), TELLING)
def test_a_clusters_words_tell_the_kind(kind, line):
    assert classify_failure(exit_code=1, output=f"step 7\n{line}\n").name == kind
    assert classify_failure(exit_code=-6, output=f"{FRAMES}{line}\n").name == kind


def test_every_pattern_has_a_row_of_its_own():
    """A pattern that is no row's first match may be wrong or shadowed by an earlier one."""
    import re

    lines = [line for _, line in TELLING]
    reached = {next(p for p in PATTERNS if re.search(p.text, line)) for line in lines}
    assert set(PATTERNS) - reached == set()


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: nan",
        "step 3 loss nan, skipped",
        "request timeout after 30 s, trying again",
        "TimeoutError: [Errno 110] Connection timed out",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:03:00): 31, pid=1234, MMU Fault",
        "OSError: [Errno 107] Transport endpoint is not connected",
        "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        "ValueError: caught a MemoryError earlier",
        "KeyError: 'SnapshotError'",
        "config: timeout=1800000ms for recv operations",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'",
        "ECC errors: 0 uncorrectable, 3 corrected",
        "Bus error (core dumped)",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3",
    ],
)
def test_near_misses_are_the_programs_own(line):
    assert classify_failure(exit_code=1, output=f"{line}\n") is FailureKind.APPLICATION


def test_only_the_last_words_count():
    output = "CUDA out of memory, halving the batch\n" + "step\n" * 20
    assert classify_failure(exit_code=1, output=output) is FailureKind.APPLICATION
    assert classify_failure(exit_code=1, output=f"{FRAMES}ValueError: b\n") is FailureKind.APPLICATION


def test_native_frames_and_faulthandlers_stacks_do_not_hide_the_last_words():
    words = "terminate called after throwing\n  what():  [Rank 0] Watchdog caught collective operation timeout: Work\n"
    frames = "".join(f"frame #{n}: c10::Error (0x7f in libc10.so)\n" for n in range(30))
    stacks = 'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n' * 9
    assert classify_failure(exit_code=-6, output=words + frames + stacks) is FailureKind.HANG


def test_a_chain_is_told_by_its_last_exception_that_says_something():
    inner, outer = "OSError: [Errno 28] No space left on device", "RuntimeError: the save failed"
    chain = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert classify_failure(exit_code=1, output=f"{FRAMES}{inner}{chain}{FRAMES}{outer}") is FailureKind.STORAGE
    last = "torch.OutOfMemoryError: CUDA out of memory"
    assert classify_failure(exit_code=1, output=f"{FRAMES}{inner}{chain}{FRAMES}{last}") is FailureKind.DEVICE_OOM


@pytest.mark.parametrize(("code", "kind"), [(-9, "UNKNOWN"), (137, "UNKNOWN"), (-15, "UNKNOWN"), (-11, "APPLICATION")])
def test_a_kill_from_outside_is_not_explained_by_what_was_printed_before(code, kind):
    assert classify_failure(exit_code=code, output="all is well\n").name == kind
    if kind == "UNKNOWN":
        assert classify_failure(exit_code=code, output="No space left on device\n").name == kind


@pytest.mark.parametrize("code", [126, 127])
def test_a_shells_codes_for_a_missing_command_are_launch(code):
    assert classify_failure(exit_code=code, output="run.sh: line 3: train: command not found") is FailureKind.LAUNCH
    assert classify_failure(exit_code=code, output=f"{FRAMES}ValueError: b") is FailureKind.APPLICATION


def test_own_patterns_go_before_ours_even_for_a_kill():
    mine = (Pattern(r"lemon-\d+", FailureKind.NODE),)
    words = "OSError: No space left on device on lemon-7"
    assert classify_failure(exit_code=1, output=words, patterns=mine) is FailureKind.NODE
    assert classify_failure(exit_code=-9, output="lemon-7 gone", patterns=mine) is FailureKind.NODE
    assert classify_failure(exit_code=1, output="lemon-x", patterns=mine) is FailureKind.APPLICATION


def test_a_pattern_is_read_as_it_was_written():
    pattern = Pattern(r"^a+$", FailureKind.HANG)
    assert parse_pattern(render_pattern(pattern)) == pattern


@pytest.mark.parametrize(
    "document", [{"text": "(", "kind": "node"}, {"text": "a", "kind": "bad luck"}, {"kind": "node"}, {}]
)
def test_a_wrong_pattern_is_refused(document):
    with pytest.raises(ValueError, match="pattern"):
        parse_pattern(document)


@pytest.mark.parametrize(
    "line",
    [
        f"RuntimeError: {GLOO}/pair.cc:534] Connection closed by peer [127.0.0.1]:5",
        f"RuntimeError: {GLOO}/pair.cc:534] Read error [127.0.0.1]:5: Connection reset by peer",
        "socketProgress: Connection closed by remote peer host<4567>",
        "misc/socket.cc:52 NCCL WARN Call to recv from 10.0.0.1<456> failed : Connection reset by peer",
        "DistBackendError: NCCL error, remote process exited or there was a network error, NCCL version 2.21.5",
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. "
        "Did the remote server shutdown or crash?",
        "Received a dump signal due to a collective timeout from rank 3 and we will try our best to dump",
    ],
)
def test_the_loss_of_a_peer_is_known_by_its_words(line):
    assert is_collateral(Failure(kind=FailureKind.APPLICATION, message=line))
    assert is_collateral(Failure(kind=FailureKind.APPLICATION, message="x", traceback=f"{FRAMES}{line}"))


def test_who_says_that_another_rank_knows_more_is_an_echo_and_has_lost_nobody():
    found = "trainer.errors.NonFiniteLoss: loss is nan and the gradient's norm nan at step 3"
    for words, echo in (
        ("; look at rank 12", True),
        ("; as rank 0 says", True),
        ("; the loss of this rank is not finite", False),
    ):
        failure = Failure(kind=FailureKind.NUMERIC, message=found + words)
        assert (is_echo(failure), is_collateral(failure)) == (echo, False)
    assert not is_echo(Failure(kind=FailureKind.APPLICATION, message="ValueError: look at rank 3"))


@pytest.mark.parametrize(
    "line",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ValueError: b",
    ],
)
def test_a_programs_own_connections_are_no_peers(line):
    assert not is_collateral(Failure(kind=FailureKind.APPLICATION, message=line, traceback=f"{FRAMES}{line}"))


def test_a_line_without_end_costs_no_time_to_search():
    """A pattern that joins two common words would take time quadratic in the line's length."""
    endless = "gloo " * 20_000
    assert not is_collateral(Failure(kind=FailureKind.APPLICATION, message="x", traceback=endless))
    assert is_collateral(Failure(kind=FailureKind.APPLICATION, message=f"Connection closed by peer {endless}"))
    late = f"{endless} No space left on device"
    assert find_telling_line(exit_code=1, output=late) is None
    assert find_telling_line(exit_code=1, output=f"No space left on device {endless}") is not None


def test_an_end_of_which_no_exit_code_is_known_was_no_kill_from_outside():
    assert classify_failure(exit_code=None, output="") is FailureKind.APPLICATION
    assert classify_failure(exit_code=None, output="std::bad_alloc") is FailureKind.HOST_OOM
    assert classify_failure(exit_code=-9, output="std::bad_alloc") is FailureKind.UNKNOWN


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (137, "ended with exit code 137"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_the_end_of_a_process_is_told_by_its_code_or_signal(code: int, words: str) -> None:
    assert describe_end(code) == words


def test_only_a_signal_of_unknown_origin_kills() -> None:
    named = [
        name_cause(kind, signal) for kind, signal in (("unknown", "SIGKILL"), ("unknown", None), ("hang", "SIGKILL"))
    ]
    assert named == ["killed", "unknown", "hang"]


def test_a_stop_has_the_exit_code_of_a_sigterm_and_no_other_cause() -> None:
    ends = [(FailureKind.UNKNOWN, 143), (FailureKind.UNKNOWN, 1), (FailureKind.APPLICATION, 143)]
    assert [is_stop(Failure(kind=kind, message="", exit_code=code)) for kind, code in ends] == [True, False, False]


def test_a_field_that_was_not_written_is_absent() -> None:
    bare = parse_failure({"kind": "node", "message": "gone"})
    assert bare == Failure(kind=FailureKind.NODE, message="gone")
    assert parse_failure({"kind": "node", "rank": "3", "step": "many"}).rank == 3


def test_what_a_binding_has_leaked_hides_no_last_words() -> None:
    """triton 3.8, which comes with torch 2.15, reports it when the interpreter ends: after the trainer's own line."""
    leaks = [f' - leaked {kind} "name_{number}"' for kind in ("type", "function") for number in range(10)]
    lines = [
        "trainer: OutOfMemory: DefaultCPUAllocator: can't allocate memory: you tried to allocate 100663296 bytes",
        "nanobind: leaked 4 instances!",
        "nanobind: leaked 64 types!",
        *leaks,
        " - ... skipped remainder",
        "nanobind: this is likely caused by a reference counting issue in the binding code.",
        "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
    ]
    assert classify_failure(exit_code=1, output="\n".join(lines)) is FailureKind.HOST_OOM
