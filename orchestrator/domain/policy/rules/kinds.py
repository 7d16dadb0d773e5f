"""Two kinds of rules: for a live attempt, and for a job without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from orchestrator.domain.observation.watched import Watched
from orchestrator.domain.policy.decision import Decision
from orchestrator.domain.policy.situation import Situation

Rule = Callable[[Situation], Decision | None]


def while_live(rule: Callable[[Situation, Watched], Decision | None]) -> Rule:
    """Apply the rule only while an attempt is live."""

    @wraps(rule)
    def guarded(s: Situation) -> Decision | None:
        return None if s.live is None else rule(s, s.live)

    return guarded


def while_idle(rule: Rule) -> Rule:
    """Apply the rule only while no attempt is live."""

    @wraps(rule)
    def guarded(s: Situation) -> Decision | None:
        return rule(s) if s.live is None else None

    return guarded
