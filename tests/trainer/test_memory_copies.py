"""Copies of the state in memory: what is read is what was sealed, or nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from tests.trainer.harness import TINY, make_manifest, make_snapshot, read_lines, start_group
from trainer.contract import env, layout
from trainer.contract.config import parse_config
from trainer.contract.env import WorkerPlace, parse_place
from trainer.contract.fence import Term, TermRecord
from trainer.contract.manifest import SnapshotName
from trainer.contract.memory import copies_bytes
from trainer.contract.workload import BYTES_VOCABULARY, build_workload
from trainer.elastic.memory_files import MemoryFiles
from trainer.errors import DamagedSnapshot
from trainer.snapshot import lineage
from trainer.snapshot.memory_copy import CopyWriter, open_copy
from trainer.snapshot.memory_reading import StateInMemory, find_states

WORLD = 2
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8)
Values = dict[MetadataIndex, torch.Tensor | BytesIO]
Write = Callable[[str, SnapshotName, Values], CopyWriter]


@pytest.fixture
def memory() -> Iterator[MemoryFiles]:
    """The files of an agent with two workers."""
    files = MemoryFiles(WORLD)
    yield files
    files.close()


def place_of(memory: MemoryFiles, local_rank: int = 0) -> WorkerPlace:
    return parse_place({**memory.environment, "LOCAL_RANK": str(local_rank)})


def build_values(seed: int = 0) -> Values:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"t{size}": torch.randn(size, 3, generator=generator) for size in (1, 5, 40)}
    return {MetadataIndex(name): tensor for name, tensor in tensors.items()} | {MetadataIndex("n"): BytesIO(b"7")}


def write(path: str, name: SnapshotName, values: Values, rank: int = 0, parts: int = WORLD) -> CopyWriter:
    writer = CopyWriter(path)
    writer.reserve({index: value for index, value in values.items() if isinstance(value, torch.Tensor)})
    writer.seal(values, make_manifest(name, {}), part=rank, parts=parts, metadata=Metadata({}) if rank == 0 else None)
    return writer


def write_whole(path: str, name: SnapshotName, values: Values) -> CopyWriter:
    """As a survivor hands its state over."""
    writer = CopyWriter(path)
    writer.erase()
    writer.write_whole(values, make_manifest(name, {}), Metadata({}))
    return writer


def overwrite(writer: CopyWriter) -> None:
    writer.erase()
    writer.seal(build_values(1), make_manifest(SnapshotName(4, Term(1, 2)), {}), part=0, parts=WORLD, metadata=None)


def overwrite_whole(writer: CopyWriter) -> None:
    writer.erase()
    writer.write_whole(build_values(1), make_manifest(SnapshotName(4, Term(1, 2)), {}), Metadata({}))


def write_state(memory: MemoryFiles, name: SnapshotName, file: int = 0) -> None:
    for rank in range(WORLD):
        write(place_of(memory, rank).own_copies[file], name, build_values(rank), rank)


def states_of(memory: MemoryFiles) -> dict[SnapshotName, StateInMemory]:
    return find_states(path for own in place_of(memory).memory for path in own)


def same(values: Values, path: str) -> bool:
    found = open_copy(path)
    assert found is not None
    return all(
        torch.equal(found.tensor(index).view(torch.uint8), value.reshape(value.shape).contiguous().view(torch.uint8))
        if isinstance(value, torch.Tensor)
        else found.header.contents.others[index] == value.getvalue()
        for index, value in values.items()
    )


@pytest.mark.parametrize("write", [write, write_whole])
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 5), min_size=1, max_size=3)), max_size=5))
@settings(deadline=None)
def test_a_copy_is_read_as_it_was_sealed(write: Write, shapes: list[tuple[torch.dtype, list[int]]]) -> None:
    memory = MemoryFiles(1)
    (path, _) = place_of(memory).own_copies
    values: Values = {
        MetadataIndex(str(number)): torch.randint(0, 2, shape).to(dtype) for number, (dtype, shape) in enumerate(shapes)
    }
    write(path, SnapshotName(3, Term(1, 2)), values)
    found = open_copy(path)
    assert found is not None
    found.verify()
    assert found.header.name == SnapshotName(3, Term(1, 2))
    assert same(values, path)
    memory.close()


def test_a_whole_state_may_have_tensors_of_any_layout(memory: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call may write only a part of a tensor."""
    path, _ = place_of(memory).own_copies
    values: Values = {
        MetadataIndex("transposed"): torch.arange(6000).view(60, 100).t(),
        MetadataIndex("scalar"): torch.tensor(7, dtype=torch.bfloat16),
        MetadataIndex("empty"): torch.empty(0, 3),
        MetadataIndex("conjugate"): torch.randn(4, dtype=torch.complex64).conj(),
        MetadataIndex("negative"): torch.randn(4, dtype=torch.complex64).conj().imag,
        MetadataIndex("trained"): torch.ones(3, requires_grad=True),
    }
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: pwrite(file, content[:1000], offset))
    write_whole(path, SnapshotName(3, Term(1, 2)), values)
    found = open_copy(path)
    assert found is not None
    found.verify()
    for index, value in values.items():
        assert isinstance(value, torch.Tensor)
        assert torch.equal(found.tensor(index), value)


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=300)
def test_a_flipped_bit_is_found_or_is_outside_the_copy(where: float, bit: int) -> None:
    memory, values = MemoryFiles(1), build_values()
    (path, _) = place_of(memory).own_copies
    write(path, SnapshotName(3, Term(1, 2)), values)
    file = os.open(path, os.O_RDWR)
    position = int(where * os.fstat(file).st_size)
    os.pwrite(file, bytes([os.pread(file, 1, position)[0] ^ (1 << bit)]), position)
    os.close(file)
    found = open_copy(path)
    if found is not None:
        with suppress(DamagedSnapshot):
            found.verify()
            assert same(values, path)
        memory.close()


@pytest.mark.parametrize("overwrite", [overwrite, overwrite_whole])
@pytest.mark.parametrize("after", range(6))
def test_a_copy_that_was_cut_off_is_none(
    memory: MemoryFiles, monkeypatch: pytest.MonkeyPatch, after: int, overwrite: Callable[[CopyWriter], None]
) -> None:
    """The process ends before its next write, wherever that is."""
    path, _ = place_of(memory).own_copies
    writer = write(path, SnapshotName(3, Term(1, 2)), build_values())
    done = 0

    class Killed(BaseException):
        pass

    def count(real):  # type: ignore[no-untyped-def]
        def run(*arguments):  # type: ignore[no-untyped-def]
            nonlocal done
            if done == after:
                raise Killed
            done += 1
            return real(*arguments)

        return run

    monkeypatch.setattr(os, "pwrite", count(os.pwrite))
    monkeypatch.setattr(torch.Tensor, "copy_", count(torch.Tensor.copy_))
    with pytest.raises(Killed):
        overwrite(writer)
    monkeypatch.undo()
    found = open_copy(path)
    assert (found is not None) == (after == 0), "erased first, sealed last"


def test_what_is_replaced_while_it_is_read_is_damaged(memory: MemoryFiles) -> None:
    path, _ = place_of(memory).own_copies
    writer = write(path, SnapshotName(3, Term(1, 2)), build_values())
    found = open_copy(path)
    assert found is not None
    writer.erase()
    with pytest.raises(DamagedSnapshot, match="replaced"):
        found.refuse_replaced()


def test_reserving_memory_leaves_the_copy_that_is_there(memory: MemoryFiles) -> None:
    """The new generation reserves memory. If it is killed before its first copy, the old one still counts."""
    path, _ = place_of(memory).own_copies
    values = build_values()
    write(path, SnapshotName(3, Term(1, 2)), values)
    CopyWriter(path).reserve({index: value for index, value in values.items() if isinstance(value, torch.Tensor)})
    found = open_copy(path)
    assert found is not None
    found.verify()
    assert same(values, path)


def test_a_tensor_of_another_size_is_refused(memory: MemoryFiles) -> None:
    path, _ = place_of(memory).own_copies
    writer = write(path, SnapshotName(3, Term(1, 2)), build_values())
    with pytest.raises(KeyError, match="another size"):
        writer.view(MetadataIndex("t5"), torch.zeros(5, 4))


def test_a_state_is_whole_if_every_rank_has_its_part(memory: MemoryFiles) -> None:
    old, new = SnapshotName(3, Term(1, 2)), SnapshotName(4, Term(1, 2))
    assert states_of(memory) == {}
    write_state(memory, old)
    write(place_of(memory, 1).own_copies[1], new, build_values(), rank=1)
    assert list(states_of(memory)) == [old]
    write(place_of(memory, 0).own_copies[1], new, build_values(), rank=0)
    assert sorted(map(str, states_of(memory))) == sorted(map(str, (old, new)))


def choose(memory: MemoryFiles, snapshots: Path, records: list[TermRecord], **place: str) -> str | None:
    told: list[str] = []
    found = lineage.choose_restore(
        parse_place(place),
        snapshots,
        records,
        lambda _, sentence, __: told.append(sentence),
        in_memory=states_of(memory),
    )
    return None if found is None else f"{found.path.name}{' memory' if found.memory else ''}{len(told) or ''}"


def test_the_newest_state_counts_wherever_it_is(memory: MemoryFiles, tmp_path: Path) -> None:
    assert choose(memory, tmp_path, []) is None
    write_state(memory, SnapshotName(30, Term(1, 2)))
    assert choose(memory, tmp_path, []) == "step-00000030-a1-g2 memory"
    make_snapshot(tmp_path, SnapshotName(20, Term(1, 1)))
    assert choose(memory, tmp_path, []) == "step-00000030-a1-g2 memory"
    make_snapshot(tmp_path, SnapshotName(40, Term(1, 2)))
    assert choose(memory, tmp_path, []) == "step-00000040-a1-g2"


def test_a_survivor_s_whole_state_counts_beside_the_ranks_parts(memory: MemoryFiles, tmp_path: Path) -> None:
    """Of equal states the survivor's is read, and a damaged or older one leaves the parts."""
    write_state(memory, SnapshotName(30, Term(1, 2)))
    own = place_of(memory, 1).own_handover
    assert own is not None
    write(own, SnapshotName(29, Term(1, 2)), build_values(), parts=1)
    assert states_of(memory)[SnapshotName(29, Term(1, 2))].source == "survivor"
    assert choose(memory, tmp_path, []) == "step-00000030-a1-g2 memory"
    assert states_of(memory)[SnapshotName(30, Term(1, 2))].source == "memory"
    write(own, SnapshotName(30, Term(1, 2)), build_values(), parts=1)
    assert states_of(memory)[SnapshotName(30, Term(1, 2))].source == "survivor"
    writer = write(own, SnapshotName(31, Term(1, 2)), build_values(), parts=1)
    assert choose(memory, tmp_path, []) == "step-00000031-a1-g2 memory"
    file = os.open(own, os.O_RDWR)
    os.pwrite(file, b"\xff", 4097)
    os.close(file)
    assert choose(memory, tmp_path, []) == "step-00000030-a1-g2 memory1"
    assert Path(own).stat().st_blocks > 0
    writer.free()
    assert Path(own).stat().st_blocks <= 8, "the page of the erased record"
    assert choose(memory, tmp_path, []) == "step-00000030-a1-g2 memory"


def test_a_damaged_state_in_memory_is_reported_and_skipped(memory: MemoryFiles, tmp_path: Path) -> None:
    write_state(memory, SnapshotName(30, Term(1, 2)))
    write_state(memory, SnapshotName(31, Term(1, 2)), file=1)
    file = os.open(place_of(memory, 1).own_copies[1], os.O_RDWR)
    os.pwrite(file, b"\xff", 4097)
    assert choose(memory, tmp_path, []) == "step-00000030-a1-g2 memory1"
    os.close(file)
    file = os.open(place_of(memory, 0).own_copies[0], os.O_RDWR)
    os.pwrite(file, b"\xff", 4097)
    os.close(file)
    assert choose(memory, tmp_path, []) is None, "there is no snapshot on disk, so the run starts from step 0"
    make_snapshot(tmp_path, SnapshotName(20, Term(1, 1)))
    assert choose(memory, tmp_path, []) == "step-00000020-a1-g12"


def test_a_state_beyond_the_fence_is_never_used(memory: MemoryFiles, tmp_path: Path) -> None:
    """Generation 3 began from step 20, so what generation 2 did after that does not count."""
    write_state(memory, SnapshotName(30, Term(1, 2)))
    make_snapshot(tmp_path, SnapshotName(20, Term(1, 1)))
    records = [TermRecord(term=Term(1, 2), base_step=20), TermRecord(term=Term(1, 3), base_step=20)]
    assert choose(memory, tmp_path, records) == "step-00000020-a1-g1"


def test_a_state_with_which_three_generations_failed_is_left_for_the_disk(memory: MemoryFiles, tmp_path: Path) -> None:
    """It can be verified, and a rank cannot load it."""
    make_snapshot(tmp_path, SnapshotName(20, Term(1, 1)))
    write_state(memory, SnapshotName(30, Term(1, 1)))
    records = [TermRecord(term=Term(1, 1), base_step=0)]
    for generation in range(2, 5):
        assert choose(memory, tmp_path, records) == "step-00000030-a1-g1 memory"
        records.append(TermRecord(term=Term(1, generation), base_step=30))
    assert choose(memory, tmp_path, records) == "step-00000020-a1-g1"


def test_after_a_retry_from_an_older_snapshot_older_copies_do_not_count(memory: MemoryFiles, tmp_path: Path) -> None:
    write_state(memory, SnapshotName(30, Term(1, 2)))
    make_snapshot(tmp_path, SnapshotName(20, Term(1, 1)))
    wanted = {env.RESTORE_FROM: "step-00000020-a1-g1", env.RETRY: "1"}
    records = [TermRecord(term=Term(1, 2), base_step=20)]
    assert choose(memory, tmp_path, records, **wanted) == "step-00000020-a1-g1"


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.smoke)])
def test_a_killed_group_goes_on_from_memory_with_the_same_curve(
    memory: MemoryFiles, tmp_path: Path, strategy: str
) -> None:
    options = {"strategy": strategy, "snapshot_interval": 1000, "snapshot_memory": 1, "steps": 40}
    with start_group(tmp_path / "whole", WORLD, **options) as undisturbed:
        assert undisturbed.wait() == [0, 0], undisturbed.outputs()
    expected, kills = undisturbed.losses(), (7, 15, 24)
    for generation, step in enumerate(kills, start=1):
        variables = memory.environment
        with start_group(tmp_path / "job", WORLD, generation=generation, variables=variables, **options) as group:
            group.wait_for_step(step)
            group.processes[generation % WORLD].send_signal(signal.SIGKILL)
        assert {at: loss for at, loss in group.losses().items() if expected[at] != loss} == {}
        if generation > 1:
            (restored,) = group.events("restored")
            assert restored["evidence"]["source"] in ("memory", "survivor")
            assert restored["evidence"]["step"] > 0, "nothing is on disk"
    copies = [path for rank in range(WORLD) for path in place_of(memory, rank).own_copies]
    in_use = sum(Path(path).stat().st_blocks * 512 for path in copies)
    load = build_workload(
        parse_config({**TINY, **options}), world_size=WORLD, ranks_per_node=WORLD, vocab=BYTES_VOCABULARY
    )
    assert in_use == pytest.approx(copies_bytes(load), rel=0.05), "as `plan` said"
    with start_group(tmp_path / "job", 1, generation=4, variables=memory.environment, **options) as alone:
        assert alone.wait() == [0], alone.outputs()
    assert alone.events("restored")[0]["evidence"]["from_world_size"] == WORLD
    assert alone.losses()[40] == pytest.approx(expected[40], abs=1e-6)


def test_an_interval_in_steps_skips_no_copy(tmp_path: Path, memory: MemoryFiles) -> None:
    """Training waits for the previous copy instead."""
    options = {"strategy": "fsdp", "snapshot_interval": 1000, "snapshot_memory": 2, "steps": 25}
    with start_group(tmp_path, WORLD, variables=memory.environment, **options) as group:
        assert group.wait() == [0, 0], group.outputs()
    assert sorted(name.step for name in states_of(memory)) == [22, 24]


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "stage",
    ["forward", "backward", "update", "updated", pytest.param("copying", marks=pytest.mark.smoke), "sealed", "last"],
)
def test_a_step_that_was_reported_is_in_memory_at_every_moment(
    memory: MemoryFiles, tmp_path: Path, stage: str, victim: int
) -> None:
    """With a copy of each step, a kill costs only steps that nobody has seen."""
    entry = (str(Path(__file__).with_name("killed_entry.py")),)
    variables = {**memory.environment, "KILLED_AT": stage, "KILLED_RANK": str(victim)}
    options = {"strategy": "fsdp", "snapshot_interval": 1000, "snapshot_memory": 1, "steps": 4}
    with start_group(tmp_path, WORLD, entry=entry, variables=variables, **options) as group:
        assert group.wait()[victim] == -signal.SIGKILL, group.outputs()
    lines = read_lines(group.replica_dir / layout.PROGRESS)
    reported = max(line["step"] for line in lines if line["phase"] == "step" and "step" in line)
    assert max(name.step for name in states_of(memory)) >= reported >= 3


def test_a_node_without_room_keeps_no_copies(tmp_path: Path, memory: MemoryFiles) -> None:
    entry = (str(Path(__file__).with_name("no_memory_entry.py")),)
    with start_group(tmp_path, 1, entry=entry, variables=memory.environment, snapshot_memory=1, steps=6) as group:
        assert group.wait() == [0], group.outputs()
    (ignored,) = group.events("setting.ignored")
    assert ignored["sentence"].startswith("snapshot_memory has no effect: 0.02 GB are needed, more than half of"), (
        json.dumps(ignored)
    )
    assert "half of the 0.00 GB that are free" in ignored["sentence"]


@pytest.mark.long
def test_memory_that_the_copies_hold_already_needs_no_room(tmp_path: Path, memory: MemoryFiles) -> None:
    """The next generation writes to the same files, even if nothing else is free."""
    options = {"snapshot_memory": 1, "snapshot_interval": 1000, "variables": memory.environment}
    with start_group(tmp_path, 1, steps=1000, **options) as first:
        first.wait_for_step(6)
    entry = (str(Path(__file__).with_name("no_memory_entry.py")),)
    with start_group(tmp_path, 1, generation=2, entry=entry, steps=20, **options) as second:
        assert second.wait() == [0], second.outputs()
    assert second.events("restored")[0]["evidence"]["source"] == "memory"
    assert second.events("setting.ignored") == []
