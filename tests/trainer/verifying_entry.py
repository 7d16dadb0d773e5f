"""Ranks that choose a snapshot together, folder by folder: `verifying_entry.py FOLDER... --config ...`.

Each rank prints a line of JSON for each folder: the result, how many files it has read, and on rank 0 the events. In
the folder `other-view` rank 1 finds every file of its share damaged.
"""

import json
import os
import sys
from pathlib import Path

from trainer import snapshot
from trainer.contract.env import parse_place
from trainer.errors import DamagedSnapshot, SnapshotError
from trainer.snapshot import files, lineage
from trainer.snapshot.verification import choose_together
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.waits import Waits

place = parse_place(os.environ)
checksum_file, verify_files = files.checksum_file, files.verify_files
read, reported = [], []


def checksum_and_record(path, *should_continue):
    read.append(path.name)
    return checksum_file(path, *should_continue)


def see_otherwise(directory, share):
    if directory.parent.name == "other-view" and place.rank == 1:
        raise DamagedSnapshot(next(iter(share)), "is not what it was")
    verify_files(directory, share)


files.checksum_file, snapshot.verify_files = checksum_and_record, see_otherwise


def choose(folder, waits):
    def tell(kind, sentence, evidence):
        reported.append(sentence)

    try:
        chosen = choose_together(lambda verify: lineage.choose_restore(place, folder, [], tell, verify), waits)
    except SnapshotError as error:
        return f"{type(error).__name__}: {error}"
    return None if chosen is None else chosen.path.name


waits = Waits(Heartbeat(place, 1))
with process_group(place, waits):
    for folder in sys.argv[1 : sys.argv.index("--config")]:
        read.clear()
        reported.clear()
        print(json.dumps({"got": choose(Path(folder), waits), "read": len(read), "reported": reported}), flush=True)
