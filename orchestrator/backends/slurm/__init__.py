"""Run attempts on Slurm through its commands, one Slurm job per attempt. See docs/adr/0008-slurm.md."""
