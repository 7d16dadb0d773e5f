"""`python -m trainer.snapshot verify|ls|export|import|diff`. `verify` and `ls` need no torch and unpickle nothing.

    verify DIR             exit 0 for a committed, undamaged snapshot, else 1 with the name of the damaged file
    ls DIR                 the snapshots in a job's snapshot folder, newest first
    export DIR TARGET      a snapshot as one .safetensors or .pt file, or as a folder in Hugging Face's layout
    import SOURCE DIR      a committed snapshot from such a file or folder, a plain torch.save, or any DCP directory
    diff DIR OTHER         which tensors of two snapshots differ, and by how much; exit 0 if none does, else 1

Wrong usage is exit 2, and so is a snapshot that `diff` cannot read.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from trainer import snapshot
from trainer.contract.layout import MANIFEST
from trainer.contract.manifest import SnapshotName, parse_snapshot_name
from trainer.errors import SnapshotError
from trainer.snapshot import Location, Remote

_KINDS = {("export", "target"): Path, ("import", "source"): Path, ("import", "dir"): Path}  # the rest may be URLs
_SHARD_BYTES = 5_000_000_000  # what the Hugging Face hub recommends at most


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (SnapshotError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if arguments.command == "diff" else 1


def _verify(arguments: argparse.Namespace) -> int:
    manifest = snapshot.verify(arguments.dir)
    whole = f"step {manifest.step}, {len(manifest.files)} files, {manifest.size_bytes} bytes"
    print(f"{arguments.dir} is whole: {whole}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    names = snapshot.list_named(arguments.dir)
    print(f"{'snapshot':28}{'state':14}{'step':>10}{'MB':>12}  {'world':7}{'strategy':10}{'parent':28}committed at")
    for name in sorted(names, key=lambda name: (name.step, name.term), reverse=True):
        print(_line(arguments.dir, name))
    for quarantined in _list_quarantined(arguments.dir):
        print(f"{quarantined}  quarantined as damaged")
    return 0


def _list_quarantined(directory: Location) -> list[str]:
    """The current names of the quarantined snapshots."""
    if isinstance(directory, Remote):
        return sorted(str(name) for name in snapshot.list_quarantined(directory))
    names = sorted(path.name for path in directory.glob("*.quarantined*"))
    return [name for name in names if parse_snapshot_name(name.partition(".")[0]) is not None]


def _line(directory: Location, name: SnapshotName) -> str:
    if not (directory / str(name) / MANIFEST).exists():
        return f"{name!s:28}{'not committed':14}{name.step:>10}"
    try:
        found = snapshot.read_manifest(directory / str(name))
    except SnapshotError as error:
        return f"{name!s:28}{'damaged':14}{name.step:>10}  {error}"
    size, parent = f"{found.size_bytes / 1e6:.1f}", found.parent or "-"
    place = f"{found.world_size:<7}{found.strategy:10}{parent:28}{found.at}"
    return f"{name!s:28}{'committed':14}{name.step:>10}{size:>12}  {place}"


def _export(arguments: argparse.Namespace) -> int:
    exchange = import_module("trainer.snapshot.conversion")  # imports torch, which `verify` and `ls` do without
    print(exchange.export(arguments.dir, arguments.target, arguments.weights, arguments.max_shard_bytes))
    return 0


def _import(arguments: argparse.Namespace) -> int:
    exchange = import_module("trainer.snapshot.conversion")
    print(exchange.import_from(arguments.source, arguments.dir, arguments.step, arguments.weights))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    differences = import_module("trainer.snapshot.compare").compare(arguments.dir, arguments.other)
    print("\n".join(differences) or "no difference")
    return 1 if differences else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.snapshot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, paths in (
        ("verify", _verify, ("dir",)),
        ("ls", _list, ("dir",)),
        ("export", _export, ("dir", "target")),
        ("import", _import, ("source", "dir")),
        ("diff", _diff, ("dir", "other")),
    ):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for path in paths:
            command.add_argument(path, type=_KINDS.get((name, path), snapshot.parse_location))
    for name in ("export", "import"):
        commands.choices[name].add_argument("--weights", action="store_true", help="without the optimizer's state")
    commands.choices["export"].add_argument("--max-shard-bytes", type=int, default=_SHARD_BYTES, metavar="N")
    commands.choices["import"].add_argument("--step", type=int, help="completed steps, where the source does not say")
    return parser


if __name__ == "__main__":
    sys.exit(main())
