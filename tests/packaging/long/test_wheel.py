"""Install the wheel alone in a new environment, and use its programs as a newcomer would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.dev.matrix import ROOT, Venv, build_wheel
from tests.howto.page import run_page

WITHOUT_TORCH = """\
```sh service
export ORCHESTRATOR_ROOT=$HOME/runs
orchestrator serve
```

```sh
export ORCHESTRATOR_ROOT=$HOME/runs
touch train.py
printf 'name: first\\nrun: {script: train.py}\\n' > job.yaml
orchestrator submit job.yaml --wait || echo "exit status $?"
elasticrun --standalone train.py || echo "exit status $?"
```

```text
submitted to http://...
first-...
first-... FAILED: ...pip install 'elastic-orchestrator[torch]'...
exit status 1
...
elasticrun: .../bin/python has no PyTorch; there, pip install 'elastic-orchestrator[torch]'
exit status 1
```
"""


@pytest.mark.timeout(1200)
@pytest.mark.smoke
def test_the_wheel_names_what_is_missing_and_with_torch_runs_the_tutorial(tmp_path: Path) -> None:
    wheel, venv = build_wheel(tmp_path), Venv(tmp_path / "installed" / "venv")
    venv.build(Path(sys.executable), [str(wheel)], (ROOT / "constraints.txt").read_text())
    programs = {"PATH": f"{venv.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""}

    page = tmp_path / "page.md"
    page.write_text(WITHOUT_TORCH)
    (tmp_path / "without").mkdir()
    run_page(page, tmp_path / "without", programs)

    venv.install([f"{wheel}[torch]"], ROOT / "constraints.txt")
    (tmp_path / "with").mkdir()
    run_page(ROOT / "docs" / "tutorial.md", tmp_path / "with", programs)


def test_the_command_line_names_the_python_that_it_needs(tmp_path: Path) -> None:
    code = "import sys; sys.version_info = (3, 10, 0, 'final', 0); import orchestrator.cli"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (
        1,
        "orchestrator needs Python 3.11 or newer; elasticrun runs on 3.10 too\n",
    )
