"""What `make mutate` looks at: one table, from modules to the tests that must notice. Edit it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Tests that are asked together, as pytest's arguments."""

    name: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    timing: bool = False  # it has threads and processes that race: what fails is asked again, alone


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Modules, and the stages that are asked about each of their mutants until one is red."""

    modules: tuple[str, ...]  # patterns; each must match a file
    stages: tuple[Stage, ...]  # the cheapest first


def _unit(name: str, *files: str, timing: bool = False) -> Stage:
    return Stage(name=name, arguments=tuple(f"tests/unit/test_{file}.py" for file in files or (name,)), timing=timing)


def _sqlite(name: str, *files: str) -> Stage:
    """Of what runs on every database. Some have threads that race, so what fails is asked again."""
    return Stage(name=name, arguments=(*(f"tests/{file}.py" for file in files), "-k", "sqlite"), timing=True)


ADMISSION = _unit("admission")
RULES = _unit(
    "rules", "rules", "guards", "ladder", "decide", "first_cause", "not_permitted", "queueing_clusters", "chaos"
)
FACTS = _unit(
    "facts",
    "budget",
    "counted",
    "event",
    "hang",
    "told",
    "wish",
    "node",
    "launch",
    "webhook",
    "split",
    "found_by_property",
)
EVIDENCE = _unit("evidence")
ACTS = _unit("acts", "account", "supervision", "secrets_in_starts", "found_by_crashes", "found_by_property")
LEASE = _unit("lease_keeper", timing=True)
LOOP = _unit("loop", timing=True)
RECEPTION = _unit("reception", timing=True)
COMMANDS = _unit("commands", "wish", "commands", "plans", "chaos")
KUBERNETES = Stage(
    name="kubernetes",
    arguments=("tests/kubernetes/test_replay.py", "tests/kubernetes/test_states.py", "tests/kubernetes/test_sight.py"),
)
TRIALS = _unit("trials", "trials")
INSIGHT = _unit("insight", "goodput", "shares", "gains", "chronicle", "why", "script_error")
HOUSEKEEPING = _unit("housekeeping")
ERRANDS = _unit("errands", "chaos", "injections", "told_stacks", "deletion", "wish")
IDENTITY = Stage(
    name="identity",
    arguments=(
        *(
            f"tests/identity/test_{name}.py"
            for name in ("identity", "access", "worker_token", "masking", "reach", "tokens")
        ),
    ),
)
SILENCE = _unit("silence", "hang", "told")
CONTRACT = _unit("contract", "contract_failure", "restart_policy", "guards", "contract_documents")
FENCE = _unit("fence", "guards", "fence")

LEASES = _sqlite("leases", "contract/test_leases", "contract/test_guard")
STATUS = _sqlite("status", "contract/test_supervisor_store", "store/test_supervision")
JOBS = _sqlite("jobs", "store/test_jobs")
CLUSTERS = _sqlite("clusters", "store/test_clusters")
JOURNALS = _sqlite("journals", "store/test_journals", "store/test_journal_delivery")
OWED = _sqlite("owed", "outbox/test_store")
SIGNED = Stage(name="signed", arguments=("tests/outbox/test_delivery.py", "-k", "sqlite and signed"), timing=True)

# A module that is named twice is of the later suite.
SUITES: tuple[Suite, ...] = (
    Suite(modules=("orchestrator/domain/**/*.py",), stages=(RULES, FACTS, ADMISSION)),
    Suite(modules=("orchestrator/domain/policy/evidence.py",), stages=(RULES, EVIDENCE)),
    Suite(modules=("orchestrator/domain/queueing/admission.py",), stages=(ADMISSION,)),
    Suite(
        modules=tuple(
            f"orchestrator/domain/{name}.py"
            for name in (
                "policy/budget",
                "observation/hang",
                "accounting/training_summary",
                "observation/node",
                "job/launch",
                "access/webhook",
            )
        ),
        stages=(FACTS, RULES),
    ),
    Suite(
        modules=tuple(
            f"orchestrator/domain/{name}.py"
            for name in (
                "accounting/chronicle",
                "accounting/gains",
                "accounting/goodput",
                "accounting/life",
                "explanation/remedies",
                "explanation/script_error",
                "accounting/breakdown",
                "explanation/why",
            )
        ),
        stages=(INSIGHT,),
    ),
    Suite(modules=("orchestrator/domain/accounting/retention.py",), stages=(HOUSEKEEPING,)),
    Suite(
        modules=(
            *(
                f"orchestrator/domain/{name}.py"
                for name in ("job/faults", "job/deletion", "accounting/injections", "job/dependents", "job/stacks")
            ),
            "trainer/contract/chaos.py",
        ),
        stages=(ERRANDS,),
    ),
    Suite(
        modules=tuple(
            f"orchestrator/domain/{name}.py"
            for name in (
                "access/route_roles",
                "access/identity",
                "job/masking",
                "access/url_policy",
                "job/worker_token",
            )
        ),
        stages=(IDENTITY,),
    ),
    Suite(
        modules=(
            *(f"orchestrator/commands/{name}.py" for name in ("checks", "job_commands", "plans")),
            "orchestrator/domain/job/requests.py",
        ),
        stages=(COMMANDS,),
    ),
    Suite(modules=("orchestrator/supervisor/*.py",), stages=(ACTS,)),
    Suite(modules=("orchestrator/supervisor/lease_keeper.py",), stages=(LEASE,)),
    Suite(modules=("orchestrator/supervisor/loop.py",), stages=(LOOP,)),
    Suite(modules=("orchestrator/intake/reception.py",), stages=(RECEPTION,)),
    Suite(modules=("orchestrator/store/lease_store.py",), stages=(LEASES,)),
    Suite(
        modules=tuple(f"orchestrator/store/{name}.py" for name in ("supervisor_store", "node_records", "overview")),
        stages=(STATUS,),
    ),
    Suite(modules=("orchestrator/store/job_store.py",), stages=(JOBS,)),
    Suite(modules=("orchestrator/store/cluster_reader.py",), stages=(CLUSTERS,)),
    Suite(modules=("orchestrator/store/journal_rows.py", "orchestrator/store/journal_store.py"), stages=(JOURNALS,)),
    Suite(modules=("orchestrator/store/outbox_store.py",), stages=(OWED,)),
    Suite(modules=("orchestrator/webhooks/outbox.py",), stages=(SIGNED,)),
    Suite(modules=("trainer/contract/restart_policy.py", "trainer/contract/failure.py"), stages=(CONTRACT,)),
    Suite(modules=("trainer/contract/fence.py",), stages=(FENCE,)),
    Suite(modules=("trainer/contract/silence.py",), stages=(SILENCE,)),
    Suite(modules=("orchestrator/domain/specs/trials.py",), stages=(TRIALS,)),
    Suite(
        modules=tuple(f"orchestrator/backends/kubernetes/{name}.py" for name in ("states", "sight")),
        stages=(KUBERNETES,),
    ),
)

# Of the modules above: what judges an owner's input, which is the API's tests' affair.
LEFT_OUT = (
    "orchestrator/domain/specs/spec.py",
    "orchestrator/domain/specs/unsupported.py",
    "orchestrator/domain/specs/validation.py",
)


class StaleTable(Exception):
    """The table names a file that is not there; the text says which."""


def modules_of(root: Path, suites: Sequence[Suite], left_out: Sequence[str] = ()) -> dict[str, Suite]:
    """The suite of each module, by its path from the root. Raises StaleTable."""
    for path in left_out:
        if not (root / path).is_file():
            raise StaleTable(f"{path} is left out and not there: take it off")
    found: dict[str, Suite] = {}
    for suite in suites:
        for pattern in suite.modules:
            paths = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            if not paths:
                raise StaleTable(f"no module matches {pattern}: mend the table")
            found |= {path: suite for path in paths if path not in left_out}
    return found
