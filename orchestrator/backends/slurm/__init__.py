"""A Slurm cluster, from a machine where its commands work. One Slurm job is one attempt: docs/adr/0008-slurm.md."""
