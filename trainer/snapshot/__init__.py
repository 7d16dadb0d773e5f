"""Snapshots on disk. `files` needs no torch; `python -m trainer.snapshot` is the command line."""

from trainer.snapshot.files import (
    checksum_file,
    checksum_files,
    commit,
    files_of_rank,
    list_committed,
    list_named,
    list_quarantined,
    quarantine,
    read_manifest,
    remove,
    sync_directory,
    verify,
)

__all__ = [
    "checksum_file",
    "checksum_files",
    "commit",
    "files_of_rank",
    "list_committed",
    "list_named",
    "list_quarantined",
    "quarantine",
    "read_manifest",
    "remove",
    "sync_directory",
    "verify",
]
