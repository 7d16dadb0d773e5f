"""Where the next attempt of a job begins. Pure."""

from __future__ import annotations

from orchestrator.domain.specs.spec import JobSpec


def tell_beginning(spec: JobSpec, *, has_snapshot: bool) -> str:
    """Say where another attempt would begin. Without a snapshot, a script may still have saved files of its own."""
    if has_snapshot:
        return "the newest snapshot"
    if spec.snapshot.source is not None:
        return "the snapshot that `snapshot.from` names"
    return "the beginning" if spec.run.trainer is not None else "its own files or from its beginning"
