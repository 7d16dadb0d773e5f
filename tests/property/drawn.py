"""Hypothesis strategies for jobs, quotas, pauses and failures, biased towards those that use the policy's rules."""

from __future__ import annotations

from hypothesis import strategies as st

from orchestrator.domain.queueing.admission import Limits, Quota
from tests.fakes.cluster import Fate
from tests.fakes.group import Stall
from tests.property.service_faults import Fault, FaultKind
from trainer.contract.failure import Failure, FailureKind
from trainer.contract.progress import Phase

which = st.integers(min_value=0, max_value=7)  # an index, modulo the number of things
topologies = st.sampled_from(["1", "1", "2", "1:2", "1:3", "2:3", "4"])
rarely = st.sampled_from([False, False, False, True])
then_s = st.sampled_from([None, 0.0, 30.0])  # how long the service runs afterwards; None: it does not
pauses_s = st.sampled_from([1.0, 5.0, 20.0, 130.0, 700.0])
budgets = st.fixed_dictionaries(
    {
        "application": st.sampled_from([0, 1, 3, 10, None]),
        "node": st.sampled_from([0, 2, 10, 10]),
        "hang": st.sampled_from([0, 3, 3]),
        "preemption": st.sampled_from([None, 1]),
    }
)
supervise = st.fixed_dictionaries(
    {
        "budgets": budgets,
        "refund_after_s": st.sampled_from([1e8, 1e8, 60.0]),
        "startup_timeout_s": st.just(100),
        "max_runtime_s": st.sampled_from([None, None, None, 300]),
        "heartbeat_timeout_s": st.sampled_from([60, 60, "auto"]),
        "backoff_s": st.sampled_from([[5, 60], [0, 0]]),
        "grow_back_after_s": st.sampled_from([50, 600, None]),
        "exclude_bad_nodes": st.sampled_from([True, True, False]),
    }
)
limits = st.builds(
    Limits,
    max_jobs=st.sampled_from([None, None, None, 2]),
    quotas=st.sampled_from([{}, {}, {"default": Quota(max_devices=3)}, {"default": Quota(max_jobs=1)}]),
)
failures = st.builds(
    Failure,
    kind=st.sampled_from([*FailureKind, FailureKind.APPLICATION, FailureKind.NODE]),
    message=st.sampled_from(["it broke", "it is torn", "EADDRINUSE: address in use", "Connection closed by peer"]),
)
causes = st.sampled_from([FailureKind.PREEMPTED, FailureKind.TIMEOUT, FailureKind.HOST_OOM]).map(
    lambda kind: Failure(kind=kind, message=f"the cluster says: {kind.value}")
)
fates = st.sampled_from([*[Fate.STARTS] * 6, *Fate])
stalls = st.builds(
    Stall,
    phase=st.sampled_from([Phase.STEP, Phase.STEP, Phase.SNAPSHOT]),
    culprit=which,
    reported=st.booleans(),
)
faults = st.builds(
    Fault,
    countdown=st.integers(min_value=1, max_value=6),
    after=st.booleans(),
    kind=st.sampled_from(list(FaultKind)),
)
