"""Run jobs on this machine as detached agents that a restarted service finds again. Linux only (proc(5))."""
