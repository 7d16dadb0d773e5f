"""A service sends the events of a job to a webhook."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

from orchestrator.client import Client
from tests.conftest import quick_service
from tests.jobs import ended, python_job, until
from tests.outbox.receiver import Receiver

SECRET = "a secret that nobody may find anywhere"


def test_a_receiver_gets_all_states_of_a_job_despite_a_crash_of_the_service(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with Receiver("500") as receiver:
        config = tmp_path / "orchestrator.toml"
        config.write_text(
            f'[webhooks.pager]\nurl = "{receiver.url}"\nsecret_env = "ORCHESTRATOR_PAGER"\n'
            f'[webhooks.audit]\nurl = "{receiver.url}"\nsecret_env = "ORCHESTRATOR_PAGER"\nall_jobs = true\n'
            'events = ["agent.*", "generation.*"]\n'
        )
        with quick_service(runs, ORCHESTRATOR_CONFIG=str(config), ORCHESTRATOR_PAGER=SECRET) as service:
            with Client(service.url) as client:
                job = client.submit(python_job("import os; print(sorted(os.environ.items()))", notify=["pager"]))
                receiver.wait(1)  # this request is answered with 500
                service.kill()
                service.start()
            with Client(service.url) as client:
                assert until(client, job.id, ended).state == "SUCCEEDED"
                kinds = [event.kind for event in client.events(job.id)]
                expected = kinds.count("job.state") + sum(kind.startswith(("agent.", "generation.")) for kind in kinds)
                ids = _wait_for_ids(receiver, expected)
            printed = service.printed()
        assert len(ids) == expected
        for message in receiver.received:
            content = f"{message.id}.{message.headers['webhook-timestamp']}.".encode() + message.body
            digest = hmac.digest(SECRET.encode(), content, hashlib.sha256)
            assert message.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
        documents = [message.document for message in receiver.received]
        assert {document["data"]["job"]["id"] for document in documents} == {job.id}
        states = [one["data"]["event"]["evidence"]["state"] for one in documents if one["type"] == "job.state"]
        assert states[-1] == "SUCCEEDED"
    written = b"".join(path.read_bytes() for path in runs.rglob("*") if path.is_file())
    assert b"SUCCEEDED" in written
    assert SECRET.encode() not in written
    assert "a-token-in-the-path" not in printed


def _wait_for_ids(receiver: Receiver, count: int) -> set[str]:
    """Wait for so many different messages. Each may arrive more than once."""
    while len({message.id for message in receiver.received}) < count:
        receiver.wait(len(receiver.received) + 1, timeout_s=300)
    return {message.id for message in receiver.received}
