"""Memory that a step frees stays with the process, so that the next step does not fault it in again."""

import os
import subprocess
import sys

import pytest

from tests.trainer.alone import train_alone
from tests.trainer.harness import ROOT

# Like a step, allocate and free many blocks, together more than twice the largest.
FAULTS = """
import os
import resource
import sys
from trainer.worker.malloc import keep_freed_memory

def step():
    blocks = [bytearray(1 << 20) for _ in range(20)]

if sys.argv[1] == "keep":
    keep_freed_memory(os.environ)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

needs_glibc = pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc")


def count_faults(mode, **variables):
    plain = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "GLIBC_TUNABLES"}
    environ = {**plain, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", FAULTS, mode]
    return int(subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=120).stdout)


@needs_glibc
def test_freed_memory_is_not_faulted_in_again():
    assert count_faults("keep") * 10 < count_faults("leave")


@needs_glibc
@pytest.mark.parametrize(
    "variables", [{"MALLOC_TOP_PAD_": "0"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=0"}], ids=["variable", "tunable"]
)
def test_the_users_malloc_settings_are_kept(variables):
    assert count_faults("keep", **variables) * 10 > count_faults("leave", **variables)


def test_training_on_a_cpu_keeps_freed_memory(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr("trainer.train.keep_freed_memory", kept.append)
    train_alone(tmp_path, steps=1)
    assert kept == [os.environ]
