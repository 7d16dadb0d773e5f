"""A job replaces the trash of the run directory by a link. A real service empties the trash."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.elastic.harness import wait_for
from tests.jobfolder.outside import Outside
from tests.jobs import ended, python_job, until

pytestmark = pytest.mark.timeout(400)

LINK = """
import os, pathlib
job = pathlib.Path(os.environ["ORCHESTRATOR_JOB_DIR"])
(job.parent / ".trash").symlink_to({outside!r})
"""


def test_the_trash_is_emptied_without_following_a_link_in_its_place(tmp_path: Path) -> None:
    outside, config = Outside(tmp_path / "outside"), tmp_path / "orchestrator.toml"
    config.write_text("[retention]\nlogs_days = 0.00001\n")
    settings = {"ORCHESTRATOR_CONFIG": str(config), "ORCHESTRATOR_POLL_S": "0.1"}
    with ThrowawayService(tmp_path / "runs", settings) as service, Client(service.url) as client:
        job = until(client, client.submit(python_job(LINK.format(outside=str(outside.folder)))).id, ended)
        assert job.state == "SUCCEEDED", job.reason
        trash, attempts = service.root / ".trash", service.root / job.id / "attempts"
        wait_for(lambda: not attempts.exists(), "removal of the job's attempts", timeout_s=150)
        wait_for(lambda: not list(trash.iterdir()), "empty trash", timeout_s=150)
        outside.require_untouched()
