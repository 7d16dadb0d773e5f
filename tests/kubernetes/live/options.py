"""Options of a live run: options of pytest, or environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("image", "", "an image with Python 3.10 or newer and torch (required)"),
    ("python", "python3", "the interpreter in the image"),
    ("namespace", "", "an existing one is used and stays, another is created and removed; default: a random one"),
    ("storage-class", "", "class of a PersistentVolumeClaim that is created and removed"),
    ("access-mode", "ReadWriteMany", "access mode of that claim; ReadWriteOnce if all pods are on one node"),
    ("claim", "", "instead: an existing PersistentVolumeClaim in --namespace"),
    ("host-path", "", "instead: a folder that all nodes share"),
    ("service-root", "", "path of the files of --host-path or --claim on this machine, if it has them"),
    ("advertise-host", "", "this machine's address for pods; default: the address that it uses towards the API server"),
    ("advertise-port", "0", "port on which this machine receives reports; 0: any free port"),
    ("overlay", "", "a YAML file with a patch of every Job, for example mounts of Python and torch"),
    ("context", "", "context in KUBECONFIG; default: the current one"),
    (
        "run-as",
        "",
        "user id of the pods; default: this user with --service-root, otherwise 0 with --host-path, otherwise 1000",
    ),
    ("memory-gb", "1.5", "memory of each pod of a training job; two must fit on one node"),
    ("drain", "", "a node that may be drained, or `any` (needs cluster-admin); default: skip that test"),
    ("node-down", "", "a command that cuts the power of {node}; default: skip that test"),
    ("node-up", "", "a command that restores the power of {node}"),
    ("away-s", "120", "how many seconds the API server is unreachable"),
    ("look-around", "yes", "`no`: skip `orchestrator doctor`, which takes a minute"),
)


@dataclass(frozen=True)
class Options:
    values: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values[name]


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("kubernetes", "live tests on a cluster")
    for name, default, words in _OPTIONS:
        group.addoption(f"--{name}", dest=_key(name), default=None, help=f"{words} [{_variable(name)}] {default}")


def read_options(config: pytest.Config) -> Options:
    return Options(
        {
            name: config.getoption(_key(name), None) or os.environ.get(_variable(name)) or default
            for name, default, _ in _OPTIONS
        }
    )


def _key(name: str) -> str:
    return f"kubernetes_{name.replace('-', '_')}"


def _variable(name: str) -> str:
    return f"KUBERNETES_TEST_{name.replace('-', '_').upper()}"
