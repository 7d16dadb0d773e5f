"""Snapshots in an object store: the same rules as in a folder, by marks instead of renames.

The trainer treats `local://`, fsspec's name for files, like any other store. Tests with S3 are in `long`.
"""

import errno
import pickle
from dataclasses import replace
from itertools import count
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from tests.trainer.harness import make_manifest
from trainer import snapshot
from trainer.contract import env
from trainer.contract.config import TrainerConfig
from trainer.contract.env import parse_place
from trainer.contract.fence import Term, TermRecord
from trainer.contract.manifest import SnapshotName
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot import Remote, lineage, parse_location
from trainer.snapshot.committer import Committer, PendingSnapshot
from trainer.snapshot.retention import Retention
from trainer.snapshot.staging import Stager

NAMES = [SnapshotName(step, Term(1, 1)) for step in (10, 20, 30)]
NUMBERS = count()


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return Remote(f"memory://bucket-{next(NUMBERS)}/job" if request.param == "memory" else f"local://{tmp_path}/store")


def write(path, content):
    with path.open("wb") as stream:
        stream.write(content)


def make(store, name, **details):
    directory = store / str(name)
    snapshot.claim(directory)
    for file, content in ((".metadata", b"metadata"), ("__0_0.distcp", bytes(range(256)) * 40)):
        write(directory / file, content)
    files = snapshot.checksum_files(directory, [".metadata", "__0_0.distcp"])
    snapshot.commit(directory, replace(make_manifest(name, files), details=details))
    return directory


def choose(store):
    reported = []
    records = [TermRecord(term=Term(1, 1), base_step=0)]
    restore = lineage.choose_restore(parse_place({}), store, records, lambda _, sentence, __: reported.append(sentence))
    return restore, reported


def test_only_committed_snapshots_count_and_the_newest_is_restored(store):
    assert snapshot.list_committed(store) == []
    assert choose(store) == (None, [])
    for name in NAMES[:2]:
        make(store, name)
    snapshot.claim(store / str(NAMES[2]))
    write(store / str(NAMES[2]) / "__0_0.distcp", b"half")
    assert sorted(snapshot.list_committed(store), key=str) == NAMES[:2]
    assert sorted(snapshot.list_named(store), key=str) == NAMES
    restore, reported = choose(store)
    assert (restore.manifest.step, restore.is_own, reported) == (20, True, [])
    assert pickle.loads(pickle.dumps(restore)) == restore, "rank 0 sends it to the others"


@pytest.mark.parametrize(
    ("damage", "phrase"),
    [
        (lambda shard: write(shard, bytes(10240)), "has changed since the commit"),
        (lambda shard: write(shard, b"short"), "has 5 bytes, but 10240 were committed"),
        (lambda shard: shard.unlink(), "is missing"),
        (lambda shard: write(shard.parent / "MANIFEST.json", b"{"), "is not a manifest"),
    ],
    ids=["changed", "truncated", "missing", "manifest"],
)
def test_a_damaged_snapshot_is_marked_and_the_previous_one_is_restored(store, damage, phrase):
    make(store, NAMES[0])
    damage(make(store, NAMES[1]) / "__0_0.distcp")
    restore, (reported,) = choose(store)
    assert restore.manifest.step == 10
    assert phrase in reported
    assert snapshot.list_quarantined(store) == [NAMES[1]]
    assert (store / str(NAMES[1]) / "MANIFEST.json").exists(), "kept for inspection"
    assert choose(store)[1] == [], "it is reported once"
    (store / str(NAMES[0]) / ".metadata").unlink()
    with pytest.raises(SnapshotError, match=r"none of the 2 committed snapshots .* is whole: not starting again"):
        choose(store)


def test_one_writer_and_one_commit_of_a_snapshot_win(store):
    directory = make(store, NAMES[0])
    with pytest.raises(FileExistsError):
        snapshot.claim(directory)
    with pytest.raises(FileExistsError):
        snapshot.commit(directory, make_manifest(NAMES[0], {}))
    assert snapshot.verify(directory).step == 10


def test_retention_deletes_old_snapshots_and_keeps_good_ones(store):
    for name in NAMES:
        make(store, name)
    (store / str(NAMES[2]) / "__0_0.distcp").unlink()
    reported = []
    Retention(
        store, lineage.Fence(None), lambda kind, _, evidence: reported.append((kind.value, evidence)), keep=1
    ).delete_old()
    assert [kind for kind, _ in reported] == ["snapshot.quarantined", "snapshot.deleted"]
    assert reported[1][1] == {"name": str(NAMES[0]), "verified": [str(NAMES[1])]}
    assert snapshot.list_committed(store) == [NAMES[1]]
    assert not [name for name in store.names() if name.startswith(str(NAMES[0]))], "nothing of it is left"
    snapshot.remove(store / str(NAMES[0]))


class AwayFileSystem(MemoryFileSystem):
    """A store whose network is down."""

    protocol = "away"

    def find(self, path, **options):
        raise ConnectionError("no route to host")

    cat_file = find


def test_an_unreachable_store_is_no_damage(store):
    fsspec.register_implementation("away", AwayFileSystem, clobber=True)
    away = Remote("away://bucket/job")
    with pytest.raises(SnapshotError, match="cannot be read: ConnectionError: no route to host"):
        snapshot.verify(away / str(NAMES[0]))
    with pytest.raises(OSError, match="no route to host") as raised:
        snapshot.list_committed(away)
    assert raised.value.errno == errno.EREMOTEIO, "not EIO, which a broken disk has"
    assert not isinstance(raised.value, DamagedSnapshot)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("memory://job", "it does not outlive the process that wrote it"),
        ("simplecache::memory://bucket/job", "it does not outlive the process that wrote it"),
        ("s3://", "it names no folder"),
        ("nonsense://bucket/job", "nonsense://bucket/job.* cannot hold snapshots: Protocol not known: nonsense"),
    ],
)
def test_a_url_that_cannot_keep_snapshots_is_refused(tmp_path, url, sentence):
    place = env.parse_place({env.SNAPSHOT_DIR: url})
    with pytest.raises(SnapshotError, match=sentence):
        snapshot.list_committed(lineage.snapshots_of(place))


def test_a_file_url_is_a_folder(tmp_path):
    place = env.parse_place({env.SNAPSHOT_DIR: f"file://{tmp_path}"})
    assert lineage.snapshots_of(place) == tmp_path
    assert isinstance(parse_location("a/b"), Path)


class NotHere(FileNotFoundError):
    """An error of a store, without an errno."""


def test_a_stores_own_error_becomes_an_oserror():
    with pytest.raises(FileNotFoundError) as raised, Remote("local:///nowhere")._translated():
        raise NotHere
    assert (raised.type, raised.value.errno) == (FileNotFoundError, errno.ENOENT)


def test_a_failed_snapshot_is_reported_even_if_it_cannot_be_removed(monkeypatch):
    def refuse(_):
        raise OSError(errno.EREMOTEIO, "the store is away")

    reported = []
    monkeypatch.setattr(snapshot, "remove", refuse)
    committer = object.__new__(Committer)
    committer._config, committer._last_failure = TrainerConfig(steps=9), ""
    committer._tell = lambda kind, sentence, evidence: reported.append(sentence)
    pending = PendingSnapshot(path=Remote("local:///nowhere/step-4"), step=4, samples_seen=0, requests=0)
    committer.give_up(pending, OSError("no room"))
    assert reported == ["snapshot of step 4 failed, training continues: no room"]


def test_the_stager_survives_an_error_of_its_writer(capsys):
    def fail(_):
        raise OSError("away")

    stager = Stager(torch.device("cpu"))
    for _ in range(2):
        stager.begin({}, lambda _: True, fail)
        assert stager.wait_until_done(10)
    assert "OSError: away" in capsys.readouterr().err
