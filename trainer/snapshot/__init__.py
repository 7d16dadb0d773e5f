"""Snapshots on disk. `files` needs no torch; `python -m trainer.snapshot` is the command line."""

from trainer.snapshot.files import (
    check_manifest,
    checksum_files,
    claim,
    commit,
    files_of_rank,
    list_committed,
    list_found,
    list_named,
    list_quarantined,
    quarantine,
    read_manifest,
    remove,
    verify,
    verify_files,
)
from trainer.snapshot.remote import Location, Remote, parse_location
from trainer.snapshot.stores import is_there, sync_directory

__all__ = [
    "Location",
    "Remote",
    "check_manifest",
    "checksum_files",
    "claim",
    "commit",
    "files_of_rank",
    "is_there",
    "list_committed",
    "list_found",
    "list_named",
    "list_quarantined",
    "parse_location",
    "quarantine",
    "read_manifest",
    "remove",
    "sync_directory",
    "verify",
    "verify_files",
]
