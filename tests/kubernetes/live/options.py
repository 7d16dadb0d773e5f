"""What a live run takes: options of pytest, or variables of the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("image", "", "an image with Python 3.10 or newer and torch (needed)"),
    ("python", "python3", "the interpreter in it"),
    ("namespace", "", "one that is there is used and stays, another is created and removed; default: a random one"),
    ("storage-class", "", "of a PersistentVolumeClaim that is created and removed"),
    ("access-mode", "ReadWriteMany", "of that claim; ReadWriteOnce where all pods come to one node"),
    ("claim", "", "instead: a PersistentVolumeClaim that is there, in --namespace"),
    ("host-path", "", "instead: a folder that all nodes share"),
    ("service-root", "", "where this machine sees the files of --host-path or --claim, if it does"),
    ("advertise-host", "", "this machine's address as pods reach it; default: the one that reaches the API server"),
    ("advertise-port", "0", "where this machine listens for reports; 0: any free port"),
    ("overlay", "", "a file of YAML, a patch of every Job: mounts of Python and torch, say"),
    ("context", "", "of KUBECONFIG; default: the current one"),
    ("run-as", "", "user of the pods; default: with --service-root this one, else with --host-path 0, else 1000"),
    ("memory-gb", "1.5", "of each pod of a training job; two of them must fit on one node when the other is away"),
    ("drain", "", "a node that may be drained, or `any` of a job's (needs cluster-admin); default: skip that test"),
    ("node-down", "", "a command that takes the power from {node}; default: skip that test"),
    ("node-up", "", "a command that gives it back"),
    ("away-s", "120", "how long the API server is kept away"),
    ("look-around", "yes", "`no`: begin without the minute in which `orchestrator doctor` tries two pods"),
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
