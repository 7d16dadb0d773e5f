"""`doctor` finds errors in the cluster, the image or the options before any job."""

from __future__ import annotations

import pytest

from tests.kubernetes.live.lab import tell
from tests.kubernetes.live.options import Options

pytestmark = pytest.mark.timeout(2400)


def test_doctor_finds_no_failure(findings: list[dict[str, str]], options: Options) -> None:
    if not findings:
        pytest.skip("--look-around is no")
    wrong = [each for each in findings if each["verdict"] == "failed"]
    if not options["service-root"]:  # then the service needs reports to see steps
        wrong += [each for each in findings if (each["check"], each["verdict"]) == ("reports", "warning")]
    assert not wrong, f"see docs/kubernetes.md, For development:\n{tell(findings)}"
