"""Concurrent submissions that share transactions, with real threads on both databases."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.domain.access.webhook import Webhook
from orchestrator.domain.errors import Conflict
from orchestrator.store.engine import Database
from orchestrator.store.outbox_store import OutboxStore
from orchestrator.store.records import JobFilter
from tests.builders import make_event, make_job, make_spec
from tests.store.harness import Stores

_THREADS = 16
# Prints each id once its job is stored, until it is killed.
_ENDLESS = """
import sys, threading
from orchestrator.store.engine import Database
from tests.store.harness import Stores

stores = Stores(Database(sys.argv[1]))

def submit(thread):
    for number in range(1_000_000):
        job = stores.add(f"job-{thread}-{number}", key=f"key-{thread}-{number}")
        sys.stdout.write(job.id + "\\n")
        sys.stdout.flush()

for thread in range(8):
    threading.Thread(target=submit, args=(thread,)).start()
"""


@pytest.mark.parametrize("seed", range(3))
def test_each_caller_gets_the_answer_that_it_would_get_alone(stores: Stores, seed: int) -> None:
    """Some calls repeat a key, with the same body or another one, and some use an id again."""
    chance = random.Random(seed)
    calls = [(chance.choice(["fresh", "fresh", "same key", "other body", "same id"]), number) for number in range(160)]

    def submit(kind: str, number: int) -> str | None:
        key = {"same key": f"key-{number % 5}", "other body": f"key-{number % 5}"}.get(kind)
        job = make_job("taken" if kind == "same id" else f"job-{number}", owner="alice")
        digest = "d2" if kind == "other body" else "d1"
        try:
            return stores.jobs.add(job, idempotency_key=key, digest=digest, event=make_event("job.submitted")).id
        except Conflict:
            return None

    with ThreadPoolExecutor(_THREADS) as threads:
        answers = list(threads.map(lambda call: (call, submit(*call)), calls))
    stored = {one.id for one in stores.reader.summaries(JobFilter(), limit=200, cursor=None)[0]}
    assert {answer for _, answer in answers if answer is not None} == stored
    assert all(answer == f"job-{number}" for (kind, number), answer in answers if kind == "fresh")
    assert Counter(answer for (kind, _), answer in answers if kind == "same id")["taken"] == 1
    for key in range(5):
        given = {
            (kind, answer)
            for (kind, number), answer in answers
            if number % 5 == key and kind in ("same key", "other body")
        }
        assert len({answer for _, answer in given if answer is not None}) == 1
        assert len({kind for kind, answer in given if answer is not None}) == 1
    assert all(len(stores.events(job_id)) == 1 for job_id in stored)


def test_every_stored_event_is_announced_and_queued_for_webhooks_in_its_order(url: str) -> None:
    announced: list[str] = []
    with Database(url, subscriptions=[Webhook(name="pager", events=("job.submitted",))]) as database:
        database.listen(lambda news: announced.extend(job_id for job_id, _ in news))
        stores = Stores(database)

        def submit(number: int) -> None:
            job = make_job(f"job-{number}", spec=make_spec(notify=["pager"], labels={"n": str(number)}))
            stores.jobs.add(job, idempotency_key=None, digest="d", event=make_event("job.submitted"))

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(submit, range(100)))
        assert sorted(announced) == sorted(f"job-{number}" for number in range(100))
        deliveries = OutboxStore(database).claim("pager", limit=200, hold_s=60)
        assert [one.event.job_id for one in sorted(deliveries, key=lambda one: one.event.id)] == announced
        found = [stores.reader.summaries(JobFilter(label=("n", str(n))), limit=2, cursor=None)[0] for n in range(100)]
        assert [[one.id for one in some] for some in found] == [[f"job-{n}"] for n in range(100)]


def test_what_was_answered_is_stored_after_a_kill(url: str, open_stores: Callable[[], Stores]) -> None:
    with subprocess.Popen([sys.executable, "-c", _ENDLESS, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answered = [process.stdout.readline().strip() for _ in range(200)]
        process.kill()
        answered += [line.strip() for line in process.stdout if line.endswith("\n")]
    stores = open_stores()
    missing = [job_id for job_id in answered if not stores.events(job_id)]
    assert missing == []
