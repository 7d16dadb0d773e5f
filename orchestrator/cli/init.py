"""`init`: write a job file to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, print_json
from orchestrator.cli.run import name_of
from orchestrator.cli.terminal import say
from orchestrator.domain.errors import Refused

# A line that begins with "#" and no space is a field with its default, or an example where the default is nothing.
TEMPLATE = """\
# A training job. Check it:   orchestrator plan {file}
#                 Submit it:  orchestrator submit {file} --follow
# A field after "#" shows its default. A field marked "e.g." has no default and shows an example.
# docs/job.md has every field.
name: {name}
run:                          # exactly one of script, module, command and trainer
  script: {script}
  #args: ["--epochs", "3"]    # e.g.
  #workdir: .                 # a folder on the service's machine; here: the folder of `orchestrator submit`
  #env: {{OMP_NUM_THREADS: "1"}}  # e.g.
  #secrets: [WANDB_API_KEY]   # e.g. names of `orchestrator secret set`; each becomes an environment variable

topology:
  nodes: "1"                  # "2:8": shrinks to 2 nodes when some are lost, and grows to 8
  workers_per_node: 1         # or "gpu", which means one for each GPU

#cluster: local               # of `orchestrator clusters`
#project: default
#priority: 0                  # -100 to 100; the highest starts first
#after: [other-job-id]        # e.g. jobs that must succeed first
#labels: {{team: vision}}       # e.g.

#resources:
  #cpus: 8                    # e.g. per node, like the others
  #memory_gb: 64              # e.g.
  #gpus: 0

#placement:                   # Slurm and Kubernetes
  #partition: main            # e.g.
  #time_limit_s: 86400        # e.g. the limit of one attempt; the next attempt continues

#snapshot:                    # for scripts with `Supervised`, and the bundled trainer
  #dir: /shared/snapshots     # e.g. or s3://bucket/path; default: the job's own folder
  #interval: auto             # or 500 (steps), or "600s"
  #keep: 3

#supervise:
  #startup_timeout_s: 600     # until the first step
  #heartbeat_timeout_s: auto  # a worker that is silent for this long hangs
  #max_runtime_s: 604800      # e.g. of the whole job
  #budgets: {{application: 3, launch: 3, node: 10, hang: 3, storage: 3, preemption: null}}  # failures it survives
"""


def init(
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The script that the job runs, relative to this folder.")
    ] = "train.py",
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")] = "job.yaml",
    as_json: AsJson = False,
) -> None:
    """Write a job file with the common fields, their defaults and what they mean.

    An existing file is not replaced.
    """
    if not output.isprintable():
        raise Refused("the name of the file has characters that cannot be printed")
    text = TEMPLATE.format(file=output, name=json.dumps(name_of(script)), script=json.dumps(script))
    try:
        with Path(output).open("x") as file:
            file.write(text)
    except FileExistsError:
        raise Refused(f"{output} exists; choose another name with -o FILE") from None
    except OSError as error:
        raise Refused(f"cannot write {output}: {error.strerror or error}") from error
    if as_json:
        print_json({"file": output})
    else:
        say(f"wrote {output}; check it with: orchestrator plan {output}")
