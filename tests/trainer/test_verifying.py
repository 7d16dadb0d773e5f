"""All ranks together verify a large snapshot with the same result as a single rank."""

import json
from pathlib import Path

import pytest

from tests.trainer.harness import make_manifest, start_group
from trainer import snapshot
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.manifest import FileEntry, SnapshotName
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot import lineage
from trainer.snapshot import verification as verifying

ENTRY = str(Path(__file__).with_name("verifying_entry.py"))
WORLD, FILES = 3, 7
OLD, NEW = SnapshotName(10, Term(1, 1)), SnapshotName(20, Term(1, 1))
CASES = ("whole", "damaged", "truncated", "missing", "all-damaged", "no-metadata", "other-view", "none")


def write_snapshot(folder, name):
    directory = folder / str(name)
    directory.mkdir(parents=True)
    names = [".metadata", *(f"__{rank}_0.distcp" for rank in range(FILES - 1))]
    for place, file in enumerate(names):
        (directory / file).write_bytes(bytes([place]) * 5000)
    snapshot.commit(directory, make_manifest(name, snapshot.checksum_files(directory, names)))
    return directory


def write_case(folder, case):
    if case == "none":
        folder.mkdir()
        return
    old, new = (write_snapshot(folder, name) for name in (OLD, NEW))
    shard = new / "__4_0.distcp"
    if case in ("damaged", "all-damaged"):
        shard.write_bytes(b"\xff" + shard.read_bytes()[1:])
    if case == "all-damaged":
        (old / "__1_0.distcp").write_bytes(b"")
    if case == "truncated":
        shard.write_bytes(shard.read_bytes()[:-1])
    if case == "missing":
        shard.unlink()
    if case == "no-metadata":
        manifest = make_manifest(NEW, snapshot.checksum_files(new, ["__4_0.distcp"]))
        snapshot.commit(new, manifest)


def choose_alone(folder):
    reported = []
    try:
        chosen = lineage.choose_restore(parse_place({}), folder, [], lambda _, sentence, __: reported.append(sentence))
    except SnapshotError as error:
        return f"{type(error).__name__}: {error}", reported
    return None if chosen is None else chosen.path.name, reported


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return, by case, the answers of all ranks and the answer of a single rank in an equal folder."""
    folder, alone = tmp_path_factory.mktemp("together"), tmp_path_factory.mktemp("alone")
    for case in CASES:
        write_case(folder / case, case)
        write_case(alone / case, case)
    paths = [str(folder / case) for case in CASES]
    with start_group(folder, WORLD, entry=(ENTRY, *paths)) as group:
        assert group.wait() == [0] * WORLD, group.outputs()
        printed = [process.communicate(timeout=300)[0].splitlines() for process in group.processes]
    ranks = [[json.loads(line) for line in lines if line.startswith("{")] for lines in printed]
    return {
        case: {
            "ranks": [answers[number] for answers in ranks],
            "alone": choose_alone(alone / case),
            "left": sorted(path.name for path in (folder / case).iterdir()),
            "folders": (str(folder), str(alone)),
        }
        for number, case in enumerate(CASES)
    }


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case != "other-view"])
def test_all_ranks_together_reach_the_verdict_of_one(found, case):
    together, alone_at = found[case]["folders"]
    got, reported = found[case]["alone"]
    got, reported = json.loads(json.dumps([got, reported]).replace(alone_at, together))
    assert [answer["got"] for answer in found[case]["ranks"]] == [got] * WORLD
    assert [answer["reported"] for answer in found[case]["ranks"]] == [reported, [], []]


def test_each_file_is_read_by_one_rank(found):
    counts = sorted(answer["read"] for answer in found["whole"]["ranks"])
    assert counts == [2, 2, 3]


def test_a_snapshot_damaged_on_all_ranks_is_quarantined(found):
    assert found["damaged"]["ranks"][1]["got"] == str(OLD)
    assert found["damaged"]["left"] == [str(OLD), f"{NEW}.quarantined"]


def test_damage_that_one_node_sees_is_no_damage(found):
    """That rank's storage may be stale. A good snapshot is not quarantined for it, nor restored on that rank."""
    answers = {answer["got"] for answer in found["other-view"]["ranks"]}
    assert len(answers) == 1
    assert answers.pop().startswith(f"SnapshotError: rank 1 finds damage in {NEW} where rank 0 finds none")
    assert found["other-view"]["left"] == [str(OLD), str(NEW)]


def test_the_largest_files_go_to_different_ranks():
    files = {f"{size}": FileEntry(size_bytes=size, checksum="") for size in (5, 90, 1, 80, 70, 3)}
    shares = [verifying.share_of(files, rank, 3) for rank in range(3)]
    assert [max(entry.size_bytes for entry in share.values()) for share in shares] == [90, 80, 70]
    assert sorted(name for share in shares for name in share) == sorted(files)
    assert verifying.share_of(files, 9, 10) == {}


def test_one_rank_verifies_a_small_snapshot_and_does_not_read_a_large_one(tmp_path, monkeypatch):
    directory = write_snapshot(tmp_path, NEW)
    size_bytes = snapshot.read_manifest(directory).size_bytes
    monkeypatch.setattr(verifying, "ALONE_BYTES", size_bytes)
    assert verifying.verify_small(directory).step == NEW.step
    (directory / ".metadata").write_bytes(b"damaged")
    with pytest.raises(DamagedSnapshot):
        verifying.verify_small(directory)
    monkeypatch.setattr(verifying, "ALONE_BYTES", size_bytes - 1)
    with pytest.raises(verifying.TooLarge):
        verifying.verify_small(directory)
