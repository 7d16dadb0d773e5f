"""Events about snapshots, for the bundled trainer and for scripts. Needs no torch."""

from __future__ import annotations

from trainer.contract.exit_record import EventKind
from trainer.contract.manifest import Manifest
from trainer.snapshot import Location
from trainer.snapshot.lineage import Restore, Tell


def tell_restored(restore: Restore, world_size: int, tell: Tell) -> None:
    manifest, name = restore.manifest, restore.path.name
    sources = {"disk": name, "memory": "memory", "buddy": "the memory of another node", "survivor": "a survivor"}
    source = sources[restore.source]
    sizes = {"from_world_size": manifest.world_size, "world_size": world_size}
    tell(
        EventKind.RESTORED,
        f"restored step {manifest.step} from {source} (world size {manifest.world_size} → {world_size})",
        {"name": name, "step": manifest.step, "source": restore.source, **sizes},
    )


def tell_committed(path: Location, manifest: Manifest, seconds: float, tell: Tell) -> None:
    size_bytes = manifest.size_bytes
    tell(
        EventKind.SNAPSHOT_COMMITTED,
        f"committed snapshot {path.name} ({size_bytes / 1e6:.1f} MB in {seconds:.2f} s)",
        {
            "name": path.name,
            "folder": str(path.parent),
            "step": manifest.step,
            "size_bytes": size_bytes,
            "world_size": manifest.world_size,
            "seconds": round(seconds, 3),
        },
    )
