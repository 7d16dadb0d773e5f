"""A database on a full disk: what the service says, and that it stops saying it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from orchestrator.store.engine import Database
from tests.api.conftest import World, build_world
from tests.conftest import mount_small_disk

WARNING = "Orchestrator-Warning"


def test_answers_warn_while_the_database_cannot_be_written(tmp_path: Path, empty_database: Path) -> None:
    with mount_small_disk(tmp_path / "disk") as disk:
        file = disk / "orchestrator.db"
        shutil.copy(empty_database, file)
        database = Database(f"sqlite:///{file}")
        world = build_world(tmp_path, database)
        try:
            job_id = world.submit()
            assert WARNING not in world.client.get("/api/v1/jobs").headers
            fill(disk / "filler")
            while world.post_spec().status_code == 201:  # the log of SQLite may have some room left
                pass
            check_warnings(world, job_id, file)
            (disk / "filler").unlink()
            world.submit()
            assert WARNING not in world.client.get("/api/v1/jobs").headers
            assert "cannot be written" not in world.client.get("/readyz").json()["detail"]
        finally:
            world.client.close()
            database.dispose()


def check_warnings(world: World, job_id: str, file: Path) -> None:
    for path in ("/api/v1/jobs", f"/api/v1/jobs/{job_id}/why"):
        warning = world.client.get(path).headers[WARNING]
        assert warning.startswith(f"The service cannot write its database {file}: the disk is full; ")
        assert "Running jobs continue." in warning
    poll = world.client.get(f"/jobs/{job_id}", headers={"X-Fragment": "main"})
    assert WARNING in poll.headers
    unchanged = {"X-Fragment": "main", "If-None-Match": poll.headers["etag"]}
    assert WARNING in world.client.get(f"/jobs/{job_id}", headers=unchanged).headers
    assert "the database cannot be written" in world.client.get("/readyz").json()["detail"]
    for public in ("/healthz", "/readyz", "/api/v1/jobs/absent"):
        assert WARNING not in world.client.get(public).headers, "only answers that need a role have the path"


def fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
