"""`python -m tests.kubernetes.pretend FOLDER`: run the fake cluster for manual tests and for the live tests.

It writes FOLDER/kubeconfig and runs until it is interrupted.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import yaml

from tests.kubernetes.fake_api import FakeApi, Store
from tests.kubernetes.fake_cluster import FakeCluster


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    store = Store()
    api, cluster = FakeApi(store), FakeCluster(store, folder)
    api.start()
    cluster.start()
    store.put("serviceaccounts", {"metadata": {"name": "default"}}, "ADDED")
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(api.url)))
    print(f"export KUBECONFIG={folder}/kubeconfig", flush=True)
    ends = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ends.set())
    ends.wait()
    cluster.close()
    api.close()


def kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pretend",
        "clusters": [{"name": "pretend", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "pretend", "context": {"cluster": "pretend", "user": "nobody"}}],
    }


if __name__ == "__main__":
    main()
