"""What a job can put anywhere in its folder, as strategies for property tests."""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ATTEMPT = 2
NAMES = (
    "claim",
    "claim-7",
    "launch.json",
    "desired.json",
    "node.json",
    "departed-0.json",
    "submitted-7",
    "allocation-7",
    "slurm-7.log",
    "began",
    "replica-0",
    "replica-0/agent.log",
    "replica-0/agent.log.1",
    "replica-0/printed.json",
    "replica-0/1",
    "replica-0/1/agent.json",
    "replica-0/1/exit.json",
    "replica-0/1/events.jsonl",
    "replica-0/1/progress.jsonl",
    "replica-0/1/resources.jsonl",
    "replica-0/1/resources.jsonl.1",
    "replica-0/1/g1",
    "replica-0/1/g1/local-0",
    "replica-0/1/g1/local-0/log",
    "replica-0/1/g1/local-0/stacks.txt",
    "replica-1",
    "replica-1/1/exit.json",
    "replica-0/\n1",
)
PLACES = (
    "",
    "fence",
    "fence/a00003-g0000.json",
    "attempts",
    f"attempts/{ATTEMPT}",
    "cache",
    "snapshots",
    "snapshots/step-00000001-a1-g1",
    "snapshots/step-00000001-a1-g1/MANIFEST.json",
    "workdir-0.json",
    *(f"attempts/{ATTEMPT}/{name}" for name in NAMES),
)
TEXTS = (
    "",
    "\0",
    "[" * 100_000,
    "{}",
    "[]",
    '{"x": 1}',
    '{"folder": "../outside"}',
    '{"outcome": "failed"}',
    '{"outcome": "failed", "restarts": "' + "9" * 5000 + '"}',
    '{"process": {"pid": -1, "start_ticks": 1e999, "boot_id": "", "host": ""}}',
    '{"at": "x", "kind": "snapshot.committed", "evidence": {"name": "../../outside", "step": -1}}\n' * 100,
    '{"at": "9999-01-01T00:00:00Z", "generation": 1, "ranks": [0], "memory_bytes": [1e999]}\n' * 100,
    "1 n[1-100000][1-100000]\n",
    "1 " + "n[1]" * 5000,
    "1 n[" + "0" * 4000 + "1-99999]",
    "withdrawn",
)

Plant = Callable[[Path, Path], None]  # in a place, with the folder outside


def _link(target: str) -> Plant:
    def plant(place: Path, outside: Path) -> None:
        place.symlink_to(outside / target if target != "itself" else place.name)

    return plant


def _absolute(target: str) -> Plant:
    return lambda place, _: place.symlink_to(target)


def _text(text: str) -> Plant:
    return lambda place, _: place.write_text(text) and None


def _hard_link(place: Path, outside: Path) -> None:
    place.hardlink_to(outside / "linked")


def _device(minor: int) -> Plant:
    def plant(place: Path, _: Path) -> None:
        with suppress(PermissionError):
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, minor))

    return plant


def _socket(place: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound, suppress(OSError):  # a long path is no address
        bound.bind(str(place))


def _sparse(place: Path, _: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)


def _huge(place: Path, _: Path) -> None:
    place.write_bytes(b'{"at": "2026-01-01T00:00:00Z", "kind": "x"}\n' * 100_000)


def _many(place: Path, _: Path) -> None:
    place.mkdir()
    for number in range(3000):
        os.mknod(place / f"claim-{number}")


def _deep(place: Path, _: Path) -> None:
    here = place
    for _depth in range(200):
        here.mkdir()
        here = here / "d"


def _closed(place: Path, _: Path) -> None:
    place.mkdir(mode=0o000)


PLANTS: dict[str, Plant] = {
    "a link to a file": _link("precious"),
    "a link to a folder": _link(""),
    "a link to a replica's life": _link("1"),
    "a link to itself": _link("itself"),
    "a link upwards": _absolute(".."),
    "a link to endless zeros": _absolute("/dev/zero"),
    "a link to its own process": _absolute("/proc/self/fd"),
    "a link to nowhere": _absolute("/nowhere/at/all"),
    "a hard link": _hard_link,
    "a pipe": lambda place, _: os.mkfifo(place),
    "endless zeros": _device(5),
    "a full device": _device(7),
    "a socket": _socket,
    "a terabyte of nothing": _sparse,
    "a huge file": _huge,
    "a folder": lambda place, _: place.mkdir(),
    "many files": _many,
    "a deep folder": _deep,
    "a closed folder": _closed,
    **{f"a text {number}": _text(text) for number, text in enumerate(TEXTS)},
}


def plant(job: Path, where: str, what: str, outside: Path) -> None:
    """Clear the place, then plant. Does nothing if a part of the path is no longer a folder."""
    place = job / where
    with suppress(OSError):
        if any(each.is_symlink() for each in place.parents if each.is_relative_to(job)):
            return  # a job may write through a link, but the test checks that nothing behind it changes
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or not place.is_dir():
            place.unlink(missing_ok=True)
        else:
            shutil.rmtree(place)
        PLANTS[what](place, outside)


def shuffle(job: Path, outside: Path, chance: random.Random) -> None:
    """Replace a random entry, as a job may do at any time."""
    plant(job, chance.choice(PLACES), chance.choice(list(PLANTS)), outside)
