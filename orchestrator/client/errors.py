"""What the calls of a client raise besides NotFound."""

from __future__ import annotations

from pathlib import Path

from orchestrator.domain.errors import Refused, Unavailable
from orchestrator.wire.problems import Problem


class ServiceUnreachable(Unavailable):
    """No answer, or one that is not from an orchestrator. `repeatable`: the call may be sent again."""

    def __init__(self, url: str, cause: str, *, repeatable: bool = False, wait_s: float = 0) -> None:
        super().__init__(f"the service at {url} {cause}")
        self.url, self.repeatable, self.wait_s = url, repeatable, wait_s


class NoService(ServiceUnreachable):
    """No service uses the run directory. One that restarts appears again, so every call may be repeated."""

    def __init__(self, root: Path) -> None:
        Unavailable.__init__(self, f"no service uses the run directory {root}")
        self.url, self.repeatable, self.wait_s = "", True, 0


class RequestRefused(Refused):
    """The service refused a request. `problem` is its RFC 9457 document. `job_id` is the job of the request, if any."""

    def __init__(self, problem: Problem, job_id: str | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem, self.job_id = problem, job_id
