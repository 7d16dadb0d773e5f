"""Golden files of launches: the AppDef, then what the cluster gets. `GOLDEN=write` writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from orchestrator.domain.job.appdef import render_appdef
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest

_FOLDER = Path(__file__).parent / "golden"


def check_launch(name: str, plan: LaunchPlan, native: NativeRequest) -> None:
    """Compare the launch with the golden file `name`, for example slurm/plain."""
    golden = _FOLDER / f"{name}.txt"
    text = f"{json.dumps(render_appdef(plan.app), indent=1)}\n\n{native.text}"
    if os.environ.get("GOLDEN") == "write":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()
