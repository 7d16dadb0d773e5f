"""A throw-away Slurm of several nodes on this machine. Linux, as root; packages slurm-wlm and iproute2."""
