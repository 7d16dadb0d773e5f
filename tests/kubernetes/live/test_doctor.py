"""What is wrong with the cluster, its image or these options is said before the jobs show it."""

from __future__ import annotations

import pytest

from tests.kubernetes.live.lab import tell
from tests.kubernetes.live.options import Options

pytestmark = pytest.mark.timeout(2400)


def test_two_pods_find_all_that_jobs_need(findings: list[dict[str, str]], options: Options) -> None:
    if not findings:
        pytest.skip("--look-around is no")
    wrong = [each for each in findings if each["verdict"] == "failed"]
    if not options["service-root"]:  # then the service knows of steps by reports alone
        wrong += [each for each in findings if (each["check"], each["verdict"]) == ("reports", "warning")]
    assert not wrong, f"docs/kubernetes.md, For development, tells what helps:\n{tell(findings)}"
