"""Explain which limit of a QOS or an account holds a job up, from the name of Slurm's reason. Pure.

Slurm builds these names by a scheme (squeue(1), "Job Reason Codes"): the limit's owner (QOS or association), Grp,
Max or Min, the resource, and what it counts per (job, node, user or account).
"""

from __future__ import annotations

import re

from orchestrator.domain.observation.observation import CAN_NEVER_START

_RESOURCES = {
    "bb": "burst buffer space",
    "billing": "billing units",
    "cpu": "CPUs",
    "energy": "energy",
    "gres": "GRES",
    "jobs": "running jobs",
    "license": "licenses",
    "mem": "memory",
    "node": "nodes",
    "submitjob": "jobs",
    "unknown": "of some resource",
    "wall": "wall time",
}
_NAME = re.compile(
    r"(?P<whose>QOS|Assoc|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>BB|Billing|CPUs?|Cpu|Energy|GRES|Gres|Jobs|License|Memory|Mem|Node|SubmitJobs?|Unknown|WallDuration|Wall)"
    r"(?P<minutes>RunMinutes|Minutes|)(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?\Z"
)


def explain_limit(reason: str) -> str | None:
    """Say in a clause which limit it is. None if the reason is no limit of a QOS or an account."""
    found = _NAME.match(reason)
    if found is None:
        return None
    whose = "its account" if found["whose"] == "Assoc" else "its QOS"  # limits per account are those of a QOS too
    what = _name_resource(found["what"], found["minutes"])
    if found["kind"] == "Min":
        return f"{CAN_NEVER_START}: {whose} requires more {what} of a job"
    match found["per"]:
        case "Job":
            return f"{CAN_NEVER_START} with more {what} than {whose} allows one job"
        case "Node":
            return f"{CAN_NEVER_START} with more {what} on a node than {whose} allows"
        case "Account":
            return f"{whose} allows its account no more {what}"
    if found["kind"] == "Grp":
        return f"{whose} allows all its jobs together no more {what}"
    return f"{whose} allows its user no more {what}"


def _name_resource(name: str, minutes: str) -> str:
    words = next(words for begin, words in _RESOURCES.items() if name.lower().startswith(begin))
    return f"{words.removesuffix('s')} minutes" if minutes else words
